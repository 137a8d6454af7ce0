"""``dovetail repair``: a model that another tool quantized, made to deploy with its own numbers."""

from __future__ import annotations

from pathlib import Path

import click

# How much of each list is printed.
_LISTED = 12


@click.command("repair")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--target", required=True, help="What the model ships to, as in ort-cpu.")
@click.option("--precision", help="By default what most of its activations have.")
@click.option(
    "--calib", metavar="DATA", help="For figures, and for ranges that are missing; without, figures are on noise."
)
@click.option("--eval", "eval_", metavar="DATA", help="Held-out data, with the metric's targets beside the inputs.")
@click.option("--metric", metavar="MODULE:FUNCTION", help="Gets iterators of outputs and targets, gives named figures.")
@click.option("--shape", multiple=True, metavar="NAME=1,3,224,224", help="Pin a symbolic input shape.")
@click.option("--option", multiple=True, metavar="KEY=VALUE", help="An option of the target; unknown keys are refused.")
@click.option("-o", "--output", "output", type=click.Path(path_type=Path), required=True, help="The run directory.")
@click.option("--force", is_flag=True, help="Replace an earlier run there.")
@click.option("--no-cache", is_flag=True, help="Compile everything again, and keep nothing in the compile cache.")
@click.pass_context
def repair_command(
    context: click.Context,
    model: Path,
    target: str,
    precision: str | None,
    calib: str | None,
    eval_: str | None,
    metric: str | None,
    shape: tuple[str, ...],
    option: tuple[str, ...],
    output: Path,
    force: bool,
    no_cache: bool,
) -> None:
    """Put the Q/DQ pairs of MODEL, a QDQ model, where the target wants them; its weights and scales are kept."""
    from dovetail.cli.fit import show
    from dovetail.cli.progress import showing_progress
    from dovetail.config import options_from, parse_options, parse_shapes
    from dovetail.repairs import precision_of, repair

    shapes = parse_shapes(shape)
    values = {"target": target, "precision": precision or precision_of(model, shapes), "shape": shapes}
    values |= {"option": parse_options(option)} | ({"metric": metric} if metric else {})
    options = options_from({**values, "cache": not no_cache})
    with showing_progress() as report:
        result, record = repair(model, options, output, calibration=calib, evaluation=eval_, force=force, report=report)
    code = show(result, output, ())
    for one in record.rewrites:
        click.echo(f"rewritten: {one.name}: {len(one.changed)} places, declined at {len(one.declined)}")
        for site in one.declined:
            click.echo(f"declined: {one.name} at {site.where}: {site.what}")
    _list("missing", [f"{name}: {why}" for name, why in record.missing.items()])
    _list("changed", [f"{name}: {why}" for name, why in record.changed.items()])
    _list("removed", [f"the pair on {name}" for name in record.removed])
    context.exit(code)


def _list(word: str, lines: list[str]) -> None:
    """Some lines of a list; the whole of it is in the run directory."""
    for line in lines[:_LISTED]:
        click.echo(f"{word}: {line}")
    if len(lines) > _LISTED:
        click.echo(f"{word}: and {len(lines) - _LISTED} more, in repair.json")
