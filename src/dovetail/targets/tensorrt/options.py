"""The options of ``tensorrt``: known keys only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.errors import InputError
from dovetail.targets.child import DEFAULT_MEMORY_LIMIT_BYTES, DEFAULT_TIME_LIMIT_S
from dovetail.targets.option_values import one_of, seconds, whole
from dovetail.targets.tensorrt.chips import Gpu

DEFAULTS = {
    "compute": "fp16",
    "time_limit_s": f"{DEFAULT_TIME_LIMIT_S:g}",
    "memory_limit_mb": str(DEFAULT_MEMORY_LIMIT_BYTES >> 20),
}
# Address space of a child that has loaded tensorrt-rtx 1.7.1.116 and built nothing yet.
_LEAST_MEMORY_MB = 400


@dataclass(frozen=True, slots=True)
class TrtOptions:
    """What a caller asked of the target: ``half``: what is not stored in 8 bit computes in float16, not float32."""

    gpu: Gpu
    half: bool = True
    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES


def read_options(gpu: Gpu, given: Mapping[str, str]) -> TrtOptions:
    """The checked record of what was given with ``--option``."""
    for key in given:
        if key not in DEFAULTS:
            raise InputError(f"target tensorrt has no option {key!r}; there is {', '.join(DEFAULTS)}")
    values = {**DEFAULTS, **given}
    memory_mb = whole("memory_limit_mb", values["memory_limit_mb"])
    if memory_mb < _LEAST_MEMORY_MB:
        raise InputError(
            f"--option memory_limit_mb={memory_mb}: the builder's libraries alone take {_LEAST_MEMORY_MB} MB"
        )
    return TrtOptions(
        gpu,
        half=one_of("compute", values["compute"], ("fp16", "fp32")) == "fp16",
        time_limit_s=seconds("time_limit_s", values["time_limit_s"]),
        memory_limit_bytes=memory_mb << 20,
    )
