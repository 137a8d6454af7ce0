"""``dovetail bisect``: the smallest part of a model that a compiler refuses, changes or computes incorrectly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dovetail.cli.options import IMAGES, NO_CACHE, SHAPE, TARGET_OPTION, option_values

FOUND = 1


@click.command("bisect")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--target", required=True, help="Target to deploy to, for example ort-cpu; see `dovetail targets`.")
@click.option(
    "--predicate",
    type=click.Choice(["refused", "wrong", "changed"]),
    help="What to look for: refused by the compiler, wrong outputs, or changed precisions. Default: the first of these "
    "that is true of MODEL.",
)
@click.option("--precision", help="Precision in which a float MODEL is quantized: w8a8 (default), w8a16, ...")
@click.option(
    "--calib",
    metavar="DATA",
    help="Data to run MODEL on: .npz file, folder of .npy files or images, module:function. Default: random numbers.",
)
@SHAPE
@IMAGES
@TARGET_OPTION
@NO_CACHE
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write to; default: MODEL_bisect.")
@click.option("--force", is_flag=True, help="Replace an earlier result in the folder.")
@click.pass_context
def bisect_command(
    context: click.Context, /, model: Path, predicate: str | None, output: Path | None, force: bool, **arguments: Any
) -> None:
    """Find the smallest part of MODEL (float or QDQ) that fails on a target.

    Parts of the graph are compiled with the real compiler, with the inputs that they have in the whole model. Writes
    the smallest one as an ONNX file of a few nodes, with a report to send to the vendor and the changes that fix it.
    The exit code is 1 if a part was found, 0 if MODEL does not fail.
    """
    from dovetail.bisect.run import REPORT, NoFailure, bisect
    from dovetail.cli.progress import BISECT_STAGES, showing_progress
    from dovetail.config import options_from
    from dovetail.printable import one_line

    folder = output or Path(f"{model.stem}_bisect")
    options = options_from(option_values(arguments))
    with showing_progress(BISECT_STAGES) as report:
        found = bisect(
            model,
            options,
            folder,
            predicate=predicate,
            calibration=arguments["calib"],
            force=force,
            report=report,
        )
    if isinstance(found, NoFailure):
        click.echo(f"{one_line(model.name)} does not fail on {one_line(options.target)}: {found.checked}")
        return
    part = found.part
    click.echo(f"{part.failure.kind}: {one_line(part.failure.cause)}")
    for operator, name in part.nodes:
        click.echo(f"  {operator}  {one_line(name)}")
    click.echo(f"parts tried: {part.tried}")
    helps = [attempt.what for attempt in found.attempts if not attempt.failure]
    tried = len(found.attempts)
    click.echo(f"fixed by: {'; '.join(helps)}" if helps else f"none of the {tried} changes that were tried fixes it")
    click.echo(f"{one_line(str(folder))}: {REPORT}, part.onnx")
    context.exit(FOUND)
