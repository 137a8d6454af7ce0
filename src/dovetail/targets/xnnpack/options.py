"""The options of ``xnnpack``, checked: an unknown key is an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.errors import InputError
from dovetail.targets.child import DEFAULT_MEMORY_LIMIT_BYTES, DEFAULT_TIME_LIMIT_S
from dovetail.targets.option_values import seconds, whole

DEFAULTS = {
    "time_limit_s": f"{DEFAULT_TIME_LIMIT_S:g}",
    "memory_limit_mb": str(DEFAULT_MEMORY_LIMIT_BYTES >> 20),
}


@dataclass(frozen=True, slots=True)
class XnnpackOptions:
    """The limits of the child processes that lower and run programs."""

    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES


def read_options(values: Mapping[str, str]) -> XnnpackOptions:
    """Check the values given with ``--option`` and return them as one record."""
    for key in values:
        if key not in DEFAULTS:
            raise InputError(f"target xnnpack has no option {key!r}: expected one of {', '.join(DEFAULTS)}")
    values = {**DEFAULTS, **values}
    return XnnpackOptions(
        seconds("time_limit_s", values["time_limit_s"]),
        whole("memory_limit_mb", values["memory_limit_mb"]) << 20,
    )
