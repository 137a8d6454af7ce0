"""GPUs by compute capability: which the ahead-of-time builder knows, and what they can."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dovetail.errors import InputError

# What tensorrt-rtx 1.7.1.116 builds for without a GPU at hand.
BUILT = (75, 80, 86, 89, 120, 121)
DEFAULT = 89
# The first with FP8 tensor cores; the builder refuses FP8 below ("FP8 is not supported").
_FIRST_FP8 = 89
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
        return self.sm >= _FIRST_FP8

    @property
    def is_built(self) -> bool:
        return self.sm in BUILT


def gpu_named(variant: str) -> Gpu:
    """``sm89`` -> the GPU; the empty string is the default."""
    if not variant:
        return Gpu(DEFAULT)
    found = re.fullmatch(r"sm(\d{2,3})", variant)
    if found is None or int(found[1]) < _OLDEST:
        raise InputError(f"target tensorrt has no variant {variant!r}: say smNN, as in tensorrt:sm{DEFAULT}")
    return Gpu(int(found[1]))
