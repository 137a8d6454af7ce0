"""``dovetail check`` and ``dovetail explain``: the findings on a model, and the documentation of a rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dovetail.cli.options import ENCODINGS, option_values

ERROR_FOUND = 1


@click.command("check")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--target", help="Target to deploy to, for example ort-cpu; see `dovetail targets`. Required.")
@click.option("--shape", multiple=True, metavar="NAME=1,3,224,224", help="Static shape of an input.")
@click.option("--calib", metavar="DATA", help="Calibration data, for the rules that check ranges.")
@ENCODINGS
@click.option("--option", multiple=True, metavar="KEY=VALUE", help="Option of the target; see `dovetail targets`.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="TOML file as for `dovetail fit`, with the findings that are allowed, by rule and name of a node or tensor: "
    "[allow] with Q301 = ['decoder.*'].",
)
@click.option("--all", "every", is_flag=True, help="Show every finding; the text groups them by rule otherwise.")
@click.option(
    "--format", "format_", type=click.Choice(["text", "json", "sarif", "github"]), default="text", show_default=True
)
@click.pass_context
def check_command(
    context: click.Context,
    /,
    model: Path,
    calib: str | None,
    encodings: Path | None,
    every: bool,
    format_: str,
    **arguments: Any,
) -> None:
    """Report the problems of MODEL (float or QDQ) on a target; of a float model, also as quantized by --encodings.

    Nothing is written. The exit code is 1 if a finding that is not allowed has the severity error.
    """
    from dovetail.allow_list import allow_list
    from dovetail.checking import check_file
    from dovetail.cli.findings import FORMATS, Shown, as_text
    from dovetail.config import options_from, read_config
    from dovetail.finding import Severity
    from dovetail.printable import printable
    from dovetail.targets import open_target

    config = None if arguments["config"] is None else read_config(arguments["config"])
    options = options_from(option_values(arguments))
    if encodings is None:
        findings = check_file(model, open_target(options.target, options.option), options.shape, calib)
    else:
        from dovetail.encodings_run import check_with_encodings

        values = {"target": options.target, "shape": options.shape, "option": options.option}
        findings = check_with_encodings(model, values, encodings=encodings, calibration=calib)
    divided = allow_list(config or {}, arguments["config"] or Path()).divide(findings)
    shown = Shown(divided.counted, model, options.target, divided.allowed, divided.unused)
    text = as_text(shown, every) if format_ == "text" else FORMATS[format_](shown)
    if format_ == "text":
        _print_text(printable(text))
    else:
        click.echo(text if format_ in ("json", "sarif") else printable(text))
    is_error = any(finding.severity is Severity.ERROR for finding in divided.counted)
    context.exit(ERROR_FOUND if is_error else 0)


@click.command("explain")
@click.argument("code", required=False)
def explain_command(code: str | None) -> None:
    """Explain the rule CODE, or list all rules.

    The text says what the rule finds, why it matters, how to fix it and on which versions it was observed.
    """
    from dovetail.catalog import all_rules, find_rule
    from dovetail.rule_docs import explain

    if code is not None:
        _print_markdown(explain(find_rule(code)))
        return
    for rule in all_rules():
        _print_text(f"{rule.code}  {rule.name}\n      {rule.summary}")


def _print_text(text: str) -> None:
    """Print text, wrapped at words on a terminal and as it is otherwise."""
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        console.print(text, markup=False, highlight=False, emoji=False, overflow="fold")
    else:
        click.echo(text)


def _print_markdown(text: str) -> None:
    """Print Markdown, rendered on a terminal and as plain text otherwise."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        click.echo(text, nl=False)
