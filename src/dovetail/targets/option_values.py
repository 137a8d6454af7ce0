"""Parse the values of ``--option KEY=VALUE``; an invalid value is an error that names the key."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dovetail.errors import InputError
from dovetail.targets.child import DEFAULT_LIMITS, Limits
from dovetail.whole_number import LARGEST, whole_number


def one_of(key: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return a value that must be one of a fixed list."""
    if value not in allowed:
        raise InputError(f"--option {key}={value}: expected one of {', '.join(allowed)}")
    return value


def whole(key: str, value: str) -> int:
    """Return a whole number above zero."""
    number = whole_number(value)
    if number is None:
        raise InputError(f"--option {key}={value}: expected a whole number from 1 to {LARGEST}")
    return number


def seconds(key: str, value: str) -> float:
    """Return a number of seconds above zero."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number <= LARGEST:
        raise InputError(f"--option {key}={value}: expected a number above zero and at most {LARGEST}")
    return number


# The options that limit child processes, with their defaults as a caller would write them.
LIMITS = {"time_limit_s": f"{DEFAULT_LIMITS.time_s:g}", "memory_limit_mb": str(DEFAULT_LIMITS.memory_bytes >> 20)}


def read_limits(values: Mapping[str, str]) -> Limits:
    """Return the limits of child processes."""
    return Limits(
        seconds("time_limit_s", values["time_limit_s"]),
        whole("memory_limit_mb", values["memory_limit_mb"]) << 20,
    )
