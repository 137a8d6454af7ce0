"""One call of the command line: what was typed, and what an error message needs to know about it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import click


@dataclass(slots=True)
class Invocation:
    """The arguments of a call; ``debug``: show tracebacks; ``output``: the run directory, once a command has one."""

    arguments: list[str]
    debug: bool = False
    output: Path | None = None

    @property
    def command(self) -> str:
        """The command as it can be typed again."""
        return shlex.join(["dovetail", *self.arguments])


def current(context: click.Context, output: Path | None = None) -> Invocation:
    """Return the call that a command belongs to, and note its run directory."""
    invocation = context.find_object(Invocation) or Invocation([])
    invocation.output = output
    return invocation


def debug_option() -> click.Option:
    """``--debug``, which every command accepts."""

    def remember(context: click.Context, _: click.Parameter, value: bool) -> None:
        invocation = context.find_object(Invocation)
        if value and invocation is not None:
            invocation.debug = True

    return click.Option(
        ["--debug"], is_flag=True, expose_value=False, callback=remember, help="Show the traceback of an error."
    )
