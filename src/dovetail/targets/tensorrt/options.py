"""The options of ``tensorrt``, checked: an unknown key is an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.errors import InputError
from dovetail.targets.child import DEFAULT_LIMITS, Limits
from dovetail.targets.option_values import LIMITS, one_of, read_limits
from dovetail.targets.tensorrt.chips import Gpu

DEFAULTS = {"compute": "fp16", **LIMITS}
# Address space of a child process that has loaded tensorrt-rtx 1.7.1.116 and built nothing yet.
_LEAST_MEMORY_MB = 400


@dataclass(frozen=True, slots=True)
class TrtOptions:
    """The options of one target; ``half``: everything that is not quantized runs in float16 instead of float32."""

    gpu: Gpu
    half: bool = True
    limits: Limits = DEFAULT_LIMITS


def read_options(gpu: Gpu, values: Mapping[str, str]) -> TrtOptions:
    """Check the values given with ``--option`` and return them as one record."""
    for key in values:
        if key not in DEFAULTS:
            raise InputError(f"target tensorrt has no option {key!r}; expected one of {', '.join(DEFAULTS)}")
    values = {**DEFAULTS, **values}
    limits = read_limits(values)
    memory_mb = limits.memory_bytes >> 20
    if memory_mb < _LEAST_MEMORY_MB:
        raise InputError(
            f"--option memory_limit_mb={memory_mb}: expected at least {_LEAST_MEMORY_MB}, "
            "which the builder's libraries alone take"
        )
    return TrtOptions(
        gpu,
        half=one_of("compute", values["compute"], ("fp16", "fp32")) == "fp16",
        limits=limits,
    )
