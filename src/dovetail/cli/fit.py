"""``dovetail fit`` and ``dovetail demo``: the whole line, with progress, ending in a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dovetail.errors import InputError

if TYPE_CHECKING:
    from dovetail.report.result import Result

VERDICT_FAILED = 1
NOT_CHECKED = 3


@click.command("fit")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--target", help="What the model ships to, as in ort-cpu.")
@click.option("--precision", help="w8a8 (default), w8a16, fp32, ... as the target allows.")
@click.option("--range", "range_", metavar="METHOD", help="minmax (default), percentile, mse or entropy.")
@click.option("--calib", metavar="DATA", help=".npz, folder of .npy or pictures, module:function, or random.")
@click.option("--eval", "eval_", metavar="DATA", help="Held-out data, with the metric's targets beside the inputs.")
@click.option("--metric", metavar="MODULE:FUNCTION", help="Gets iterators of outputs and targets, gives named figures.")
@click.option("--keep", multiple=True, metavar="GLOB=PRECISION", help="Pin tensors or nodes by original name.")
@click.option("--plan", type=click.Path(path_type=Path), help="An edited plan.json to carry out.")
@click.option("--io", type=str, help="float (default) or quantized inputs and outputs.")
@click.option("--baselines", type=str, help="Compare with first (default), none, all, or baselines by name.")
@click.option("--operand-bits", help="Second operand of activation-by-activation MatMuls: auto (default), 16 or 8.")
@click.option("--emulate", type=int, metavar="N", help="Samples to run on an emulated target; one by default.")
@click.option("--shape", multiple=True, metavar="NAME=1,3,224,224", help="Pin a symbolic input shape.")
@click.option("--size", metavar="H,W", help="Size of pictures; checked against the model.")
@click.option("--mean", metavar="M,...", help="Mean of pictures scaled to 0..1, per channel.")
@click.option("--std", metavar="S,...", help="Standard deviation, likewise.")
@click.option("--layout", help="nchw (default) or nhwc, for pictures.")
@click.option("--option", multiple=True, metavar="KEY=VALUE", help="An option of the target; unknown keys are refused.")
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with the same keys as these options.")
@click.option("--require", multiple=True, metavar="VERDICT", help="Exit with 3 when this verdict is not checked.")
@click.option("-o", "--output", "output", type=click.Path(path_type=Path), required=True, help="The run directory.")
@click.option("--force", is_flag=True, help="Replace an earlier run there.")
@click.option("--resume", is_flag=True, help="Continue an earlier run there.")
@click.option("--no-cache", is_flag=True, help="Compile everything again, and keep nothing in the compile cache.")
@click.pass_context
def fit_command(context: click.Context, /, model: Path, output: Path, force: bool, resume: bool, **given: Any) -> None:
    """Quantize MODEL for a target, compile it there, and say what is true of it."""
    from dovetail.cli.progress import showing_progress
    from dovetail.config import options_from
    from dovetail.job import prepare
    from dovetail.pipeline import fit

    options = options_from(_values(given), planned=given["plan"] is not None)
    job = prepare(model, options, calibration=given["calib"], evaluation=given["eval_"], plan=given["plan"])
    with showing_progress() as report:
        result = fit(job, output, force=force, resume=resume, report=report)
    context.exit(show(result, output, options.require))


def _values(given: dict[str, Any]) -> dict[str, Any]:
    """The options as the record wants them; what the command line says wins over the file."""
    from dovetail.config import parse_numbers, parse_options, parse_shapes, parse_size, read_config

    values = read_config(given["config"]) if given["config"] is not None else {}
    plain = {"target": "target", "precision": "precision", "range_": "range", "metric": "metric", "io": "io"}
    plain |= {"layout": "layout", "baselines": "baselines", "emulate": "emulate", "operand_bits": "operand_bits"}
    values |= {key: given[name] for name, key in plain.items() if given[name] is not None}
    values |= {name: given[name] for name in ("keep", "require") if given[name]}
    values |= {"cache": False} if given["no_cache"] else {}
    values |= {name: parse_numbers(name, given[name]) for name in ("mean", "std") if given[name] is not None}
    if given["shape"]:
        values["shape"] = parse_shapes(given["shape"])
    if given["option"]:
        values["option"] = parse_options(given["option"])
    if given["size"] is not None:
        values["size"] = parse_size(given["size"])
    return values


def show(result: Result, output: Path, require: tuple[str, ...]) -> int:
    """Print the result, and the exit code that follows from it."""
    from dovetail.finding import Status
    from dovetail.report.terminal import print_result

    print_result(result, output)
    if result.failed:
        return VERDICT_FAILED
    unchecked = [name for name in require if result.verdicts[name].status is Status.NOT_CHECKED]
    return NOT_CHECKED if unchecked else 0


@click.command("demo")
@click.option("--model", "name", default="vit_digits", show_default=True, help="A shipped model; see the README.")
@click.option("--target", default="ort-cpu", show_default=True)
@click.option("--precision", default="w8a8", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("runs/demo"), show_default=True)
@click.option("--no-cache", is_flag=True, help="Compile everything again, and keep nothing in the compile cache.")
@click.pass_context
def demo_command(context: click.Context, name: str, target: str, precision: str, output: Path, no_cache: bool) -> None:
    """The whole line on a small trained model that ships with the package, with real images and labels."""
    from dovetail import zoo
    from dovetail.calibrate.user_code import load_function
    from dovetail.cli.progress import showing_progress
    from dovetail.config import FitOptions
    from dovetail.job import prepare
    from dovetail.pipeline import fit

    if name not in zoo.names():
        raise InputError(f"--model {name}: no such shipped model; there is {', '.join(zoo.names())}")
    shipped = zoo.load(name)
    options = FitOptions(target=target, precision=precision, range="mse", cache=not no_cache)
    job = prepare(
        shipped.model_path,
        options,
        calibration=shipped.calib(),
        evaluation={**shipped.eval(), **shipped.targets()},
        metric=load_function(shipped.metric),
    )
    with showing_progress() as report:
        result = fit(job, output, force=True, report=report)
    context.exit(show(result, output, ()))
