"""The options of ``xnnpack``: known keys only, because a typo must not be silent."""

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
    """The limits of the child processes that lower and run."""

    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES


def read_options(given: Mapping[str, str]) -> XnnpackOptions:
    """The checked record of what was given with ``--option``."""
    for key in given:
        if key not in DEFAULTS:
            raise InputError(f"target xnnpack has no option {key!r}; there is {', '.join(DEFAULTS)}")
    told = {**DEFAULTS, **given}
    return XnnpackOptions(
        seconds("time_limit_s", told["time_limit_s"]),
        whole("memory_limit_mb", told["memory_limit_mb"]) << 20,
    )
