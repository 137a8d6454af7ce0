"""The options of ``tensorrt``: known keys only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.errors import InputError
from dovetail.targets.child import DEFAULT_LIMITS, Limits
from dovetail.targets.option_values import LIMITS, one_of, read_limits
from dovetail.targets.tensorrt.chips import Gpu

DEFAULTS = {"compute": "fp16", **LIMITS}
# Address space of a child that has loaded tensorrt-rtx 1.7.1.116 and built nothing yet.
_LEAST_MEMORY_MB = 400


@dataclass(frozen=True, slots=True)
class TrtOptions:
    """What a caller asked of the target: ``half``: what is not stored in 8 bit computes in float16, not float32."""

    gpu: Gpu
    half: bool = True
    limits: Limits = DEFAULT_LIMITS


def read_options(gpu: Gpu, given: Mapping[str, str]) -> TrtOptions:
    """The checked record of what was given with ``--option``."""
    for key in given:
        if key not in DEFAULTS:
            raise InputError(f"target tensorrt has no option {key!r}; there is {', '.join(DEFAULTS)}")
    values = {**DEFAULTS, **given}
    limits = read_limits(values)
    memory_mb = limits.memory_bytes >> 20
    if memory_mb < _LEAST_MEMORY_MB:
        raise InputError(
            f"--option memory_limit_mb={memory_mb}: the builder's libraries alone take {_LEAST_MEMORY_MB} MB"
        )
    return TrtOptions(
        gpu,
        half=one_of("compute", values["compute"], ("fp16", "fp32")) == "fp16",
        limits=limits,
    )
