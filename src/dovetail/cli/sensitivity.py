"""``dovetail sensitivity``: which tensors, operators and blocks cost accuracy when they are quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dovetail.cli.invocation import current
from dovetail.cli.options import (
    CALIBRATION,
    HELD_OUT,
    IMAGES,
    KEEP,
    OUTPUT,
    RANGE,
    SHAPE,
    TARGET_OPTION,
    option_values,
)


@click.command("sensitivity")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--target", required=True, help="Target to deploy to, for example ort-cpu; see `dovetail targets`.")
@click.option("--precision", help="Precision to measure: w8a8 (default), w8a16, ...")
@RANGE
@CALIBRATION
@HELD_OUT
@click.option(
    "--samples",
    type=int,
    help="How many samples to use, of --eval or else of --calib. Default: 16 for SQNR, all of --eval for the metric.",
)
@click.option(
    "--first-order",
    is_flag=True,
    help="Estimate the cost of operators instead of measuring each, and measure only those that cost most.",
)
@KEEP
@SHAPE
@IMAGES
@TARGET_OPTION
@OUTPUT
@click.option("--resume", is_flag=True, help="Continue an earlier run; its calibration is not repeated.")
@click.pass_context
def sensitivity_command(
    context: click.Context,
    /,
    model: Path,
    output: Path,
    force: bool,
    resume: bool,
    samples: int | None,
    first_order: bool,
    **arguments: Any,
) -> None:
    """Show which parts of MODEL cost accuracy when they are quantized.

    Every operator is quantized alone, in simulation, with everything else in float; its weights apart from its
    activations. Also whole blocks, all weights, and all activations. Nothing is compiled. Ranked by the drop of the
    metric if there is one, else by SQNR. OUTPUT/sensitivity.json and OUTPUT/sensitivity.csv have all figures.
    """
    from dovetail.cli.progress import SENSITIVITY_STAGES, showing_progress
    from dovetail.config import options_from
    from dovetail.job import prepare
    from dovetail.printable import one_line
    from dovetail.report.sensitivity import CSV, JSON
    from dovetail.report.sensitivity_terminal import print_sensitivity
    from dovetail.run_record import SENSITIVITY_KIND, RunOrigin
    from dovetail.sensitivity_run import SensitivityOptions, sensitivity

    origin = RunOrigin(SENSITIVITY_KIND, current(context, output).command)
    chosen = SensitivityOptions(first_order, samples)
    options = options_from(option_values(arguments))
    with showing_progress(SENSITIVITY_STAGES) as report:
        job = prepare(model, options, calibration=arguments["calib"], evaluation=arguments["eval_"])
        result = sensitivity(job, output, chosen, force=force, resume=resume, report=report, origin=origin)
    print_sensitivity(result)
    click.echo(f"{one_line(str(output))}: {JSON}, {CSV}")
