"""``dovetail check`` and ``dovetail explain``: what the rules find in a model, and what a rule says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dovetail.finding import Finding

ERROR_FOUND = 1


@click.command("check")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--target", required=True, help="What the model ships to, as in ort-cpu.")
@click.option("--shape", multiple=True, metavar="NAME=1,3,224,224", help="Pin a symbolic input shape.")
@click.option("--calib", metavar="DATA", help="Run the float model on this data, for the rules that look at ranges.")
@click.option("--option", multiple=True, metavar="KEY=VALUE", help="An option of the target; unknown keys are refused.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def check_command(
    context: click.Context,
    model: Path,
    target: str,
    shape: tuple[str, ...],
    calib: str | None,
    option: tuple[str, ...],
    format_: str,
) -> None:
    """Find what keeps MODEL, float or QDQ, from running well on a target; nothing is written.

    Exit code 1 when there is a finding of severity error.
    """
    from dovetail.config import parse_options, parse_shapes
    from dovetail.finding import Severity
    from dovetail.rules.check import check_file
    from dovetail.targets import open_target

    opened = open_target(target, parse_options(option))
    findings = check_file(model, opened, parse_shapes(shape), calib)
    click.echo(_as_json(findings, model, target) if format_ == "json" else _as_text(findings, model, target))
    context.exit(ERROR_FOUND if any(finding.severity is Severity.ERROR for finding in findings) else 0)


@click.command("explain")
@click.argument("code", required=False)
def explain_command(code: str | None) -> None:
    """Say what the rule CODE finds, why it matters, how to fix it and where it was seen; all rules without CODE."""
    from dovetail.rules.catalog import all_rules, find_rule
    from dovetail.rules.docs import explain

    if code is not None:
        _print_markdown(explain(find_rule(code)))
        return
    for rule in all_rules():
        click.echo(f"{rule.code}  {rule.name}\n      {rule.summary}")


def _as_json(findings: tuple[Finding, ...], model: Path, target: str) -> str:
    from dovetail.document import encode

    rows = [_row(finding) for finding in findings]
    return encode({"model": model.name, "target": target, "findings": rows}, indent=2).decode()


def _row(finding: Finding) -> dict[str, Any]:
    from dovetail.document import builtins
    from dovetail.rules.catalog import find_rule

    return {"name": find_rule(finding.code).name, **builtins(finding)}


def _as_text(findings: tuple[Finding, ...], model: Path, target: str) -> str:
    from dovetail.rules.catalog import find_rule

    blocks = []
    for finding in findings:
        lines = [f"{finding.code} {find_rule(finding.code).name} ({finding.severity})", f"  at:  {finding.place}"]
        lines += [f"  {finding.message}"]
        lines += [f"  fix: {finding.fix}"] if finding.fix else []
        blocks.append("\n".join(lines) + "\n")
    return "\n".join([*blocks, _count(findings, model, target)])


def _count(findings: tuple[Finding, ...], model: Path, target: str) -> str:
    from dovetail.finding import Severity

    counts = Counter(finding.severity for finding in findings)
    kinds = [f"{counts[s]} {s}{'s' if counts[s] > 1 else ''}" for s in Severity if counts[s]]
    total = f"{len(findings)} finding{'' if len(findings) == 1 else 's'}"
    return f"{total} in {model.name} for {target}{': ' if kinds else ''}{', '.join(kinds)}"


def _print_markdown(text: str) -> None:
    """Rendered on a terminal, plain where it is read by a program or a file."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        click.echo(text, nl=False)
