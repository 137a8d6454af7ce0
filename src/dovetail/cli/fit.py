"""``dovetail fit`` and ``dovetail demo``: run all stages with progress, and print the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dovetail.cli.invocation import current
from dovetail.cli.options import (
    ACCURACY_LIMITS,
    BUDGET,
    CALIBRATION,
    ENCODINGS,
    HELD_OUT,
    IMAGES,
    KEEP,
    NO_CACHE,
    NO_RANGE_REPAIR,
    OUTPUT,
    RANGE,
    REPORT,
    SHAPE,
    TARGET_OPTION,
    option_values,
)
from dovetail.errors import InputError

if TYPE_CHECKING:
    from dovetail.config import FitOptions
    from dovetail.report.result import Result
    from dovetail.run_record import RunOrigin

VERDICT_FAILED = 1
NOT_CHECKED = 3


@click.command("fit")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--target",
    help="Target to deploy to, for example ort-cpu; see `dovetail targets`. Required, here or in --config.",
)
@click.option("--precision", help="w8a8 (default), w8a16, fp32, ...; `dovetail targets` lists those of each target.")
@RANGE
@click.option(
    "--rounding",
    metavar="METHOD",
    help="How weights are rounded: nearest, or with the least error of their layer's output on calibration data: "
    "scale-search (other scales), second-order (other integers too). auto (default) is nearest, and with --precision "
    "auto second-order where a precision gains by it.",
)
@CALIBRATION
@HELD_OUT
@KEEP
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    help="Use this plan.json of an earlier run, possibly edited, instead of planning.",
)
@ENCODINGS
@click.option("--io", type=str, help="Graph inputs and outputs: float (default) or quantized.")
@click.option(
    "--baselines",
    type=str,
    help="Baselines to compare latency with: first (default), none, all, or names separated by commas; first is the "
    "first baseline the target lists.",
)
@click.option(
    "--operand-bits",
    help="Bit width of the second input of MatMuls with two non-constant inputs (QK^T, attention x V), for targets "
    "that support 16 and 8: auto (default), 16 or 8.",
)
@click.option(
    "--block-size",
    type=int,
    metavar="N",
    help="Number of input channels with one scale, for precisions with block-quantized weights (default 32).",
)
@click.option(
    "--emulate",
    type=int,
    metavar="N",
    help="Number of samples to run on the emulator (default 1); only for targets with an emulator.",
)
@NO_RANGE_REPAIR
@SHAPE
@IMAGES
@TARGET_OPTION
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="TOML file with options, named as here but with _ for -. It cannot contain calib, eval, plan, output, force "
    "or resume. `cache = false` stands for --no-cache, `range_repair = false` for --no-range-repair. The table "
    "[thresholds] sets the limits of the verdicts, also those without an option of their own.",
)
@ACCURACY_LIMITS
@BUDGET
@click.option(
    "--require",
    multiple=True,
    metavar="VERDICT",
    help="Exit with code 3 if this verdict is not checked: normalized, compiled, fidelity, numerics, accuracy, "
    "budget (with --max-latency or --max-float) or device. Can be repeated.",
)
@OUTPUT
@click.option("--resume", is_flag=True, help="Continue an earlier run in the run directory.")
@REPORT
@NO_CACHE
@click.pass_context
def fit_command(
    context: click.Context, /, model: Path, output: Path, force: bool, resume: bool, page: bool, **arguments: Any
) -> None:
    """Quantize MODEL for a target, compile it and verify the result."""
    from dovetail.cli.progress import showing_progress
    from dovetail.config import options_from
    from dovetail.job import prepare
    from dovetail.pipeline import fit
    from dovetail.run_record import RunOrigin

    origin = RunOrigin("fit", current(context, output).command)
    data = {"calibration": arguments["calib"], "evaluation": arguments["eval_"]}
    if arguments["encodings"] is not None:
        result, options = _fit_with_encodings(model, output, arguments, data, force, resume, origin)
        context.exit(show(result, output, options.require, page=page))
    options = options_from(option_values(arguments), planned=arguments["plan"] is not None)
    with showing_progress() as report:
        job = prepare(model, options, **data, plan=arguments["plan"])
        result = fit(job, output, force=force, resume=resume, report=report, origin=origin)
    context.exit(show(result, output, options.require, page=page))


def _fit_with_encodings(
    model: Path,
    output: Path,
    arguments: dict[str, Any],
    data: dict[str, Any],
    force: bool,
    resume: bool,
    origin: RunOrigin,
) -> tuple[Result, FitOptions]:
    """Run ``fit`` with the scales of an encodings file."""
    from dovetail.cli.progress import showing_progress
    from dovetail.config import options_from
    from dovetail.encodings_run import fit_with_encodings, with_precision

    if arguments["plan"] is not None:
        raise InputError("--encodings cannot be combined with --plan: both decide how tensors are stored")
    file = arguments["encodings"]
    options = options_from(with_precision(option_values(arguments), model, file))
    with showing_progress() as report:
        result = fit_with_encodings(
            model, options, output, encodings=file, **data, force=force, resume=resume, report=report, origin=origin
        )
    return result, options


def show(result: Result, output: Path, require: tuple[str, ...], *, page: bool = False) -> int:
    """Print the result, and return the exit code; a finding of severity error counts like a verdict that failed.

    ``page``: also write the page about it.
    """
    from dovetail.finding import Severity, Status
    from dovetail.report.terminal import print_result

    if page:
        from dovetail.report.page.write import write_page

        write_page(output)
    print_result(result, output)
    if result.failed or any(finding.severity is Severity.ERROR for finding in result.findings):
        return VERDICT_FAILED
    # A result of an earlier version, or of a target without a device folder, does not have every verdict.
    verdicts = [result.verdicts.get(name) for name in require]
    unchecked = [verdict for verdict in verdicts if verdict is None or verdict.status is Status.NOT_CHECKED]
    return NOT_CHECKED if unchecked else 0


@click.command("demo")
@click.option("--model", "name", default="vit_digits", show_default=True, help="Shipped model; see the README.")
@click.option("--target", default="ort-cpu", show_default=True, help="Target to deploy to.")
@click.option("--precision", default="w8a8", show_default=True, help="Precision of weights and activations.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="Run directory; an earlier demo in it is replaced.",
)
@click.option("--force", is_flag=True, help="Also replace a run in the run directory that is not a demo.")
@REPORT
@NO_CACHE
@click.pass_context
def demo_command(
    context: click.Context,
    name: str,
    target: str,
    precision: str,
    output: Path,
    force: bool,
    page: bool,
    no_cache: bool,
) -> None:
    """Fit a small trained model that ships with the package."""
    from dovetail import zoo
    from dovetail.calibrate.user_code import load_function
    from dovetail.cli.progress import showing_progress
    from dovetail.config import FitOptions
    from dovetail.job import prepare
    from dovetail.pipeline import fit
    from dovetail.run_record import RECORD, RunOrigin, read_record

    if name not in zoo.names():
        raise InputError(f"--model {name}: unknown shipped model; expected one of {', '.join(zoo.names())}")
    origin = RunOrigin("demo", current(context, output).command)
    if (output / RECORD).exists() and not force:
        earlier = read_record(output)
        if earlier is None or earlier.kind != origin.kind:
            raise InputError(f"{output} contains a run that is not a demo; add --force to replace it")
    shipped = zoo.load(name)
    options = FitOptions(target=target, precision=precision, range="mse", cache=not no_cache)
    with showing_progress() as report:
        job = prepare(
            shipped.model_path,
            options,
            calibration=shipped.calib(),
            evaluation={**shipped.eval(), **shipped.targets()},
            metric=load_function(shipped.metric),
        )
        result = fit(job, output, force=True, report=report, origin=origin)
    context.exit(show(result, output, (), page=page))
