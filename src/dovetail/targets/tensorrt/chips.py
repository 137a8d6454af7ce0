"""GPUs by compute capability: which ones the ahead-of-time builder supports, and what they support."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dovetail.errors import InputError

# The compute capabilities that tensorrt-rtx 1.7.1.116 builds for without a GPU in the machine.
BUILT = (75, 80, 86, 89, 120, 121)
DEFAULT = 89
# The first compute capability with FP8 tensor cores, and the first with int4: below it the builder rejects any model
# with such a tensor ("Cannot compile for target(s) sm86, because the model contains HW-specific datatypes: fp8_e4m3").
FIRST_FP8 = 89
FIRST_INT4 = 80
# The first compute capability with INT8 convolutions; below it the builder silently runs them in float16 (engines built
# for sm75, sm80 and sm86: kernels of 1 x 1 to 7 x 7, 3 to 512 channels, with groups and depthwise). INT8 MatMuls run.
_FIRST_INT8_CONV = 80
# From here on a depthwise FP8 convolution has some kernels of more elements than others have (engines built for sm120
# and sm121: 7 x 7 runs in FP8, 3 x 11 and 9 x 9 run in float16).
_FIRST_LARGE_FP8_DEPTHWISE = 120
_OLDEST = 50


@dataclass(frozen=True, slots=True)
class Gpu:
    """One compute capability."""

    sm: int

    @property
    def name(self) -> str:
        return f"sm{self.sm}"

    @property
    def has_fp8(self) -> bool:
        return self.sm >= FIRST_FP8

    @property
    def has_int4(self) -> bool:
        return self.sm >= FIRST_INT4

    @property
    def has_large_fp8_depthwise(self) -> bool:
        return self.sm >= _FIRST_LARGE_FP8_DEPTHWISE

    @property
    def has_int8_conv(self) -> bool:
        return self.sm >= _FIRST_INT8_CONV

    @property
    def is_built(self) -> bool:
        return self.sm in BUILT


def gpu_named(suffix: str) -> Gpu:
    """Parse ``sm89`` into its GPU; the empty string is the default."""
    if not suffix:
        return Gpu(DEFAULT)
    match = re.fullmatch(r"sm(\d{2,3})", suffix)
    if match is None or int(match[1]) < _OLDEST:
        raise InputError(f"unknown target suffix {suffix!r}: expected smNN, as in tensorrt:sm{DEFAULT}")
    return Gpu(int(match[1]))
