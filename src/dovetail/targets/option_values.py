"""Values of ``--option KEY=VALUE``, checked: one sentence that names the key for what cannot be meant."""

from __future__ import annotations

import math

from dovetail.errors import InputError


def one_of(key: str, value: str, allowed: tuple[str, ...]) -> str:
    """A value from a closed list."""
    if value not in allowed:
        raise InputError(f"--option {key}={value}: must be one of {', '.join(allowed)}")
    return value


def whole(key: str, value: str) -> int:
    """A whole number above zero."""
    if not (value.isdecimal() and int(value) > 0):
        raise InputError(f"--option {key}={value}: must be a whole number above zero")
    return int(value)


def seconds(key: str, value: str) -> float:
    """A number of seconds above zero."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"--option {key}={value}: must be a number above zero")
    return number
