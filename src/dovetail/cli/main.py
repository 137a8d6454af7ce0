"""``dovetail``: the commands, and the one place where errors become exit codes.

0: no verdict failed. 1: one did, or a finding is an error. 2: bad input, or an unexpected error of ONNX Runtime or a
vendor tool (BackendError). 3: a verdict named with --require is not checked. 4: any other unexpected error. 130:
interrupted, by Ctrl-C, SIGTERM or SIGHUP. 141: the program that reads the output has ended.
"""

from __future__ import annotations

import io
import os
import sys
import traceback

import click

import dovetail
from dovetail.cli.bisect import bisect_command
from dovetail.cli.cache import cache_command
from dovetail.cli.check import check_command, explain_command
from dovetail.cli.encodings import encodings_command
from dovetail.cli.fit import demo_command, fit_command
from dovetail.cli.invocation import Invocation, debug_option
from dovetail.cli.repair import repair_command
from dovetail.cli.report import report_command
from dovetail.cli.sensitivity import sensitivity_command
from dovetail.cli.signals import interrupted_by_signals
from dovetail.cli.targets import targets_command
from dovetail.cli.verify import verify_command
from dovetail.errors import BackendError, InputError
from dovetail.printable import printable

BAD_INPUT_OR_BACKEND = 2
UNEXPECTED = 4
INTERRUPTED = 130
OUTPUT_CLOSED = 141
_NAME = "dovetail"
# Set by the shell's completion of arguments, which click answers.
_COMPLETION = "_DOVETAIL_COMPLETE"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(dovetail.__version__, prog_name="dovetail")
def cli() -> None:
    """Quantize and compile ONNX vision models for a target, and verify the compiled model."""


for command in (
    fit_command,
    repair_command,
    verify_command,
    report_command,
    check_command,
    explain_command,
    bisect_command,
    sensitivity_command,
    encodings_command,
    targets_command,
    cache_command,
    demo_command,
):
    command.params.append(debug_option())
    cli.add_command(command)
cli.params.append(debug_option())


def main(arguments: list[str] | None = None) -> None:
    """Run a command; an error is reported in one sentence, as a traceback only with --debug."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character shows its code
            stream.reconfigure(errors="backslashreplace")
    invocation = Invocation(list(sys.argv[1:] if arguments is None else arguments))
    try:
        with interrupted_by_signals():
            code = _run(invocation)
    except KeyboardInterrupt:  # a second one, while the first was handled
        code = INTERRUPTED
    sys.exit(code)


def _run(invocation: Invocation) -> int:
    """Run a command and return its exit code."""
    try:
        code = _call(invocation)
        sys.stdout.flush()
    except click.NoSuchOption as error:
        _show_unknown_option(error)
        return BAD_INPUT_OR_BACKEND
    except click.ClickException as error:
        error.show()
        return BAD_INPUT_OR_BACKEND
    except (InputError, BackendError) as error:
        _report(error, str(error), invocation)
        return BAD_INPUT_OR_BACKEND
    except (KeyboardInterrupt, click.Abort) as error:
        _report(error, _interrupted(invocation), invocation)
        return INTERRUPTED
    except BrokenPipeError:
        return _closed_output()
    except Exception as error:  # noqa: BLE001 - whatever it is, the user gets a sentence and the details in a file
        from dovetail.cli.unexpected import sentence

        _report(error, sentence(error, invocation), invocation)
        return UNEXPECTED
    return code


def _call(invocation: Invocation) -> int:
    """Run a command as ``cli.main`` does, which would turn an output that nobody reads into exit code 1."""
    if _COMPLETION in os.environ:
        cli.main(prog_name=_NAME)
    try:
        with cli.make_context(_NAME, list(invocation.arguments), obj=invocation) as context:
            code = cli.invoke(context)
    except click.exceptions.Exit as done:
        code = done.exit_code
    return code if isinstance(code, int) else 0


def _closed_output() -> int:
    """The output was piped into a program that has ended, such as head: what is left goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    return OUTPUT_CLOSED


def _report(error: BaseException, message: str, invocation: Invocation) -> None:
    if invocation.debug:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    click.echo(f"dovetail: {printable(message)}", err=True)


def _interrupted(invocation: Invocation) -> str:
    """Say what became of a run that was interrupted."""
    from dovetail.cli.unexpected import unfinished_run

    if invocation.output is None:
        return "interrupted"
    if unfinished_run(invocation) is not None:
        return f"interrupted; continue the run in {invocation.output} with --resume"
    if invocation.output.exists():
        return f"interrupted; the earlier run in {invocation.output} is unchanged"
    return "interrupted; nothing was written"


def _show_unknown_option(error: click.NoSuchOption) -> None:
    """Report an unknown option; if a target has an option of that name, say how to set it."""
    from dovetail.targets import FAMILIES, family_named

    key = error.option_name.lstrip("-").replace("-", "_")
    owner = next((name for name in sorted(FAMILIES) if key in family_named(name).option_keys), None)
    if owner is None:
        error.show()
    else:
        click.echo(
            f"dovetail: {error.option_name} is an option of the target {owner}: use --option {key}=VALUE", err=True
        )
