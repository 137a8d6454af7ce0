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
OUTPUT = together(
    click.option("-o", "--output", "output", type=click.Path(path_type=Path), required=True, help="Run directory."),
    click.option("--force", is_flag=True, help="Replace an earlier run in the run directory."),
)
NO_CACHE = click.option(
    "--no-cache", is_flag=True, help="Compile and run everything again; neither read nor write the cache."
)
NO_RANGE_REPAIR = click.option(
    "--no-range-repair",
    is_flag=True,
    help="Leave sentinels (1e34), masks (-1e9) and logits of boxes as they are, whose range no integers can represent.",
)
