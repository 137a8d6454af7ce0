"""``dovetail repair``: make a model that another tool quantized deployable, with its own scales."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dovetail.cli.invocation import current
from dovetail.cli.options import (
    ACCURACY_LIMITS,
    ENCODINGS,
    HELD_OUT,
    NO_CACHE,
    NO_RANGE_REPAIR,
    OUTPUT,
    REPORT,
    SHAPE,
    TARGET_OPTION,
)
from dovetail.printable import printable

if TYPE_CHECKING:  # importing it takes time
    from dovetail.repairs import Repair

# How many lines of each list are printed.
_LISTED = 12
# The pass whose changes are listed, because they change numbers.
_CONVERSION = "to_lpbq"


@click.command("repair")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--target", required=True, help="Target to deploy to, for example ort-cpu; see `dovetail targets`.")
@click.option("--precision", help="Precision (default: the precision most activations of MODEL already have).")
@click.option(
    "--calib",
    metavar="DATA",
    help="Calibration data, for missing scales and to compare outputs on; without it, outputs are compared on random "
    "inputs and no scale may be missing.",
)
@click.option(
    "--float",
    "float_model",
    metavar="MODEL",
    type=click.Path(path_type=Path),
    help="Float model that MODEL was quantized from: the verdict `repaired` then compares both with it.",
)
@click.option(
    "--to-lpbq",
    is_flag=True,
    help="Give int4 weights with float scales per block integer scales (LPBQ), where that is possible, and round them "
    "on the new grid: this changes numbers.",
)
@ENCODINGS
@HELD_OUT
@NO_RANGE_REPAIR
@SHAPE
@TARGET_OPTION
@ACCURACY_LIMITS
@OUTPUT
@REPORT
@NO_CACHE
@click.pass_context
def repair_command(
    context: click.Context,
    model: Path,
    target: str,
    precision: str | None,
    calib: str | None,
    float_model: Path | None,
    to_lpbq: bool,
    encodings: Path | None,
    eval_: str | None,
    metric: str | None,
    no_range_repair: bool,
    shape: tuple[str, ...],
    option: tuple[str, ...],
    max_drop: tuple[str, ...],
    min_sqnr: float | None,
    output: Path,
    force: bool,
    page: bool,
    no_cache: bool,
) -> None:
    """Move the Q/DQ pairs of MODEL to where a target expects them.

    MODEL was quantized by another tool, or is the float model that --encodings belong to. Its weights and scales are
    kept; missing scales are calibrated.
    """
    from dovetail.cli.fit import show
    from dovetail.cli.progress import showing_progress
    from dovetail.config import options_from, parse_drops, parse_options, parse_shapes
    from dovetail.encodings_run import quantized_model
    from dovetail.repairs import precision_of, repair

    command = current(context, output).command
    shapes = parse_shapes(shape)
    with ExitStack() as stack:
        quantized = model
        if encodings is not None:
            quantized = stack.enter_context(quantized_model(model, encodings, shapes))
            float_model = float_model or model
        values: dict[str, object] = {"target": target, "shape": shapes}
        values |= {"precision": precision or precision_of(quantized, shapes)}
        values |= {"option": parse_options(option)} | ({"metric": metric} if metric else {})
        values |= {"min_sqnr": min_sqnr, "max_drop": parse_drops(max_drop) or None}
        options = options_from({**values, "cache": not no_cache, "range_repair": not no_range_repair})
        report = stack.enter_context(showing_progress())
        result, record = repair(
            quantized,
            options,
            output,
            calibration=calib,
            evaluation=eval_,
            float_model=float_model,
            to_lpbq=to_lpbq,
            force=force,
            report=report,
            command=command,
        )
    code = show(result, output, (), page=page)
    _show_record(record)
    context.exit(code)


def _show_record(record: Repair) -> None:
    """Print what was rewritten, what was missing, and what was changed."""
    for rewrite in record.rewrites:
        click.echo(
            f"rewrite: {rewrite.name}: applied at {len(rewrite.changed)} sites, declined at {len(rewrite.declined)}"
        )
        if rewrite.name == _CONVERSION:
            _list("converted", [f"{site.where}: {site.what}" for site in rewrite.changed])
        for site in rewrite.declined:
            click.echo(printable(f"declined: {rewrite.name} at {site.where}: {site.what}"))
    _list("missing", [f"{name}: {why}" for name, why in record.missing.items()])
    _list("changed", [f"{name}: {why}" for name, why in record.changed.items()])
    _list("removed", [f"the Q/DQ pair on {name}" for name in record.removed])


def _list(label: str, lines: list[str]) -> None:
    """Print the first lines of a list; all of them are in the run directory."""
    for line in lines[:_LISTED]:
        click.echo(printable(f"{label}: {line}"))
    if len(lines) > _LISTED:
        click.echo(f"{label}: {len(lines) - _LISTED} more in repair.json")
