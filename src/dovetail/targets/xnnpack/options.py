"""The options of ``xnnpack``: known keys only, because a typo must not be silent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.errors import InputError
from dovetail.targets.child import DEFAULT_LIMITS, Limits
from dovetail.targets.option_values import LIMITS, read_limits

DEFAULTS = LIMITS


@dataclass(frozen=True, slots=True)
class XnnpackOptions:
    """The limits of the child processes that lower and run."""

    limits: Limits = DEFAULT_LIMITS


def read_options(given: Mapping[str, str]) -> XnnpackOptions:
    """The checked record of what was given with ``--option``."""
    for key in given:
        if key not in DEFAULTS:
            raise InputError(f"target xnnpack has no option {key!r}; there is {', '.join(DEFAULTS)}")
    return XnnpackOptions(read_limits({**DEFAULTS, **given}))
