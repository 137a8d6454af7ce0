"""``dovetail``: the commands, and the one place where errors become exit codes.

0: no verdict failed. 1: one did. 2: bad input, or an unexpected error of ONNX Runtime or a vendor tool (BackendError).
3: a verdict named with --require is not checked. 130: interrupted.
"""

from __future__ import annotations

import sys

import click

import dovetail
from dovetail.cli.cache import cache_command
from dovetail.cli.check import check_command, explain_command
from dovetail.cli.fit import demo_command, fit_command
from dovetail.cli.repair import repair_command
from dovetail.cli.targets import targets_command
from dovetail.cli.verify import verify_command
from dovetail.errors import BackendError, InputError

BAD_INPUT_OR_BACKEND = 2
INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(dovetail.__version__, prog_name="dovetail")
def cli() -> None:
    """Quantize and compile ONNX vision models for a target, and verify the compiled model."""


for command in (
    fit_command,
    repair_command,
    verify_command,
    check_command,
    explain_command,
    targets_command,
    cache_command,
    demo_command,
):
    cli.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; bad input and errors of vendor tools are reported in one sentence, never as a traceback."""
    try:
        code = cli.main(arguments, standalone_mode=False)
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.NoSuchOption as error:
        _show_unknown_option(error)
        code = BAD_INPUT_OR_BACKEND
    except click.ClickException as error:
        error.show()
        code = BAD_INPUT_OR_BACKEND
    except (InputError, BackendError) as error:
        click.echo(f"dovetail: {error}", err=True)
        code = BAD_INPUT_OR_BACKEND
    except (KeyboardInterrupt, click.Abort):
        click.echo(
            "dovetail: interrupted. Repeat the command with --resume to continue. "
            "A run that --force was replacing has been restored.",
            err=True,
        )
        code = INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)


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
