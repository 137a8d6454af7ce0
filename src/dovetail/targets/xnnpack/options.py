"""The options of ``xnnpack``, checked: an unknown key is an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.errors import InputError
from dovetail.targets.child import DEFAULT_LIMITS, Limits
from dovetail.targets.option_values import LIMITS, read_limits

DEFAULTS = LIMITS


@dataclass(frozen=True, slots=True)
class XnnpackOptions:
    """The limits of the child processes that lower and run programs."""

    limits: Limits = DEFAULT_LIMITS


def read_options(values: Mapping[str, str]) -> XnnpackOptions:
    """Check the values given with ``--option`` and return them as one record."""
    for key in values:
        if key not in DEFAULTS:
            raise InputError(f"target xnnpack has no option {key!r}; expected one of {', '.join(DEFAULTS)}")
    return XnnpackOptions(read_limits({**DEFAULTS, **values}))
