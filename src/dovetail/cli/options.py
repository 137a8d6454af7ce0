"""The options that ``fit`` and ``repair`` have in common, each declared once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_Decorator = Callable[[Any], Any]


def together(*options: _Decorator) -> _Decorator:
    """One decorator for several options, which the help lists in this order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


HELD_OUT = together(
    click.option("--eval", "eval_", metavar="DATA", help="Held-out data, with labels (ground truth) for the metric."),
    click.option(
        "--metric",
        metavar="MODULE:FUNCTION",
        help="Function of two iterators, over outputs and labels, that returns a dict of named values; requires "
        "--eval.",
    ),
)
SHAPE = click.option(
    "--shape", multiple=True, metavar="NAME=1,3,224,224", help="Static shape of an input. Can be repeated."
)
KEEP = click.option(
    "--keep",
    multiple=True,
    metavar="GLOB=PRECISION",
    help="Fix the precision of tensors or nodes whose names in MODEL match GLOB, for example 'decoder.*=fp16'. Can "
    "be repeated.",
)
RANGE = click.option(
    "--range", "range_", metavar="METHOD", help="Range method: minmax (default), percentile, mse, entropy."
)
CALIBRATION = click.option(
    "--calib",
    metavar="DATA",
    help="Calibration data: .npz file, folder of .npy files or images, module:function, or random. Required.",
)
ENCODINGS = click.option(
    "--encodings",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Scales and zero points from an encodings file (AIMET 0.6.1, 1.0.0, 2.0.0), not calibrated ones; --calib is "
    "then only needed for tensors that the file lacks. The precision is by default that of the file.",
)
IMAGES = together(
    click.option(
        "--size", metavar="H,W", help="Images are resized to the model input; --size asserts that the input is H,W."
    ),
    click.option("--mean", metavar="M,...", help="Value per channel to subtract from pixels scaled to 0..1."),
    click.option("--std", metavar="S,...", help="Value per channel to divide by, after --mean is subtracted."),
    click.option("--layout", help="Layout of the image input: nchw (default) or nhwc."),
)
TARGET_OPTION = click.option(
    "--option",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the target; see `dovetail targets`. Can be repeated.",
)
ACCURACY_LIMITS = together(
    click.option(
        "--max-drop",
        multiple=True,
        metavar="[NAME=]NUMBER",
        help="Largest drop of a value of the metric, absolute (default 0.05), with which `accuracy` passes.",
    ),
    click.option(
        "--min-sqnr", type=float, metavar="DB", help="Lowest SQNR of an output for `accuracy` to pass (default 10)."
    ),
)
BUDGET = together(
    click.option(
        "--max-latency",
        type=float,
        metavar="RATIO",
        help="Largest latency relative to the target's first baseline, for the verdict `budget` and --precision auto.",
    ),
    click.option(
        "--max-float",
        type=float,
        metavar="FRACTION",
        help="Largest fraction of MACs in float, for the verdict `budget` and --precision auto.",
    ),
)
OUTPUT = together(
    click.option("-o", "--output", "output", type=click.Path(path_type=Path), required=True, help="Run directory."),
    click.option("--force", is_flag=True, help="Replace an earlier run in the run directory."),
)
NO_CACHE = click.option(
    "--no-cache", is_flag=True, help="Compile and run everything again; neither read nor write the cache."
)
REPORT = click.option(
    "--report", "page", is_flag=True, help="Also write report.html, a page about the result, to the run directory."
)
NO_RANGE_REPAIR = click.option(
    "--no-range-repair",
    is_flag=True,
    help="Leave sentinels (1e34), masks (-1e9) and logits of boxes as they are, whose range no integers can represent.",
)


def option_values(arguments: dict[str, Any]) -> dict[str, Any]:
    """Merge the configuration file with the options of the command line, which take precedence; values are parsed.

    ``arguments``: of a command that has some of the options of ``fit``.
    """
    from dovetail.allow_list import TABLE
    from dovetail.config import parse_drops, parse_numbers, parse_options, parse_shapes, parse_size, read_config

    values = read_config(arguments["config"]) if arguments.get("config") is not None else {}
    values.pop(TABLE, None)  # which findings are allowed is no option of a run
    unparsed = {
        "target": "target",
        "precision": "precision",
        "range_": "range",
        "rounding": "rounding",
        "metric": "metric",
        "io": "io",
    }
    unparsed |= {"layout": "layout", "baselines": "baselines", "emulate": "emulate", "operand_bits": "operand_bits"}
    unparsed |= {name: name for name in ("min_sqnr", "max_latency", "max_float", "block_size")}
    given = {name: value for name, value in arguments.items() if value not in (None, ())}
    values |= {key: given[name] for name, key in unparsed.items() if name in given}
    values |= {name: given[name] for name in ("keep", "require") if name in given}
    values |= {"cache": False} if given.get("no_cache") else {}
    values |= {"range_repair": False} if given.get("no_range_repair") else {}
    values |= {name: parse_numbers(name, given[name]) for name in ("mean", "std") if name in given}
    parsers: dict[str, Callable[[Any], Any]] = {
        "shape": parse_shapes,
        "option": parse_options,
        "max_drop": parse_drops,
        "size": parse_size,
    }
    values |= {name: parse(given[name]) for name, parse in parsers.items() if name in given}
    return values
