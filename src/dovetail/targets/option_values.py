"""Values of ``--option KEY=VALUE``, checked: one sentence that names the key for what cannot be meant."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dovetail.errors import InputError
from dovetail.targets.child import DEFAULT_LIMITS, Limits
from dovetail.whole_number import LARGEST, whole_number


def one_of(key: str, value: str, allowed: tuple[str, ...]) -> str:
    """A value from a closed list."""
    if value not in allowed:
        raise InputError(f"--option {key}={value}: must be one of {', '.join(allowed)}")
    return value


def whole(key: str, value: str) -> int:
    """A whole number above zero."""
    number = whole_number(value)
    if number is None:
        raise InputError(f"--option {key}={value}: must be a whole number from 1 to {LARGEST}")
    return number


def seconds(key: str, value: str) -> float:
    """A number of seconds above zero."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number <= LARGEST:
        raise InputError(f"--option {key}={value}: must be a number above zero, and at most {LARGEST}")
    return number


# The options that limit child processes, by the defaults that a caller would write.
LIMITS = {"time_limit_s": f"{DEFAULT_LIMITS.time_s:g}", "memory_limit_mb": str(DEFAULT_LIMITS.memory_bytes >> 20)}


def read_limits(values: Mapping[str, str]) -> Limits:
    """The checked limits of child processes."""
    return Limits(
        seconds("time_limit_s", values["time_limit_s"]),
        whole("memory_limit_mb", values["memory_limit_mb"]) << 20,
    )
