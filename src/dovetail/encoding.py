"""How a tensor is stored: dtypes, encodings, and quantization parameters.

This file imports nothing else of Dovetail; every stage uses its types.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class IntGrid:
    """The range of integers that a dtype can hold."""

    bits: int
    signed: bool

    @property
    def low(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1


class DType(StrEnum):
    """The dtype in which a tensor is stored; the value is the name used in plans, tables and results."""

    U4 = "uint4"
    S4 = "int4"
    U8 = "uint8"
    S8 = "int8"
    U16 = "uint16"
    S16 = "int16"
    S32 = "int32"
    F8E4M3 = "float8e4m3fn"
    F16 = "float16"
    F32 = "float32"

    @property
    def is_integer(self) -> bool:
        return self in _GRIDS

    @property
    def is_quantized(self) -> bool:
        """Whether the dtype requires a scale; float16 and float32 do not."""
        return self not in (DType.F16, DType.F32)

    @property
    def grid(self) -> IntGrid:
        """The integer range of this dtype; only integer dtypes have one."""
        return _GRIDS[self]

    @property
    def bits(self) -> int:
        return _BITS[self]

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy (or ml_dtypes) dtype that holds the stored values, one per element."""
        return _NUMPY[self]


_GRIDS = {
    DType.U4: IntGrid(4, False),
    DType.S4: IntGrid(4, True),
    DType.U8: IntGrid(8, False),
    DType.S8: IntGrid(8, True),
    DType.U16: IntGrid(16, False),
    DType.S16: IntGrid(16, True),
    DType.S32: IntGrid(32, True),
}
_BITS = {**{dtype: grid.bits for dtype, grid in _GRIDS.items()}, DType.F8E4M3: 8, DType.F16: 16, DType.F32: 32}
_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.U4: np.dtype(ml_dtypes.uint4),
    DType.S4: np.dtype(ml_dtypes.int4),
    DType.U8: np.dtype(np.uint8),
    DType.S8: np.dtype(np.int8),
    DType.U16: np.dtype(np.uint16),
    DType.S16: np.dtype(np.int16),
    DType.S32: np.dtype(np.int32),
    DType.F8E4M3: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.F16: np.dtype(np.float16),
    DType.F32: np.dtype(np.float32),
}


class Granularity(StrEnum):
    """What one scale applies to."""

    TENSOR = "tensor"
    AXIS = "axis"
    BLOCK = "block"
    EXPANDED_BLOCK = "expanded_block"


@dataclass(frozen=True, slots=True)
class Encoding:
    """One way to store a tensor, without scale and zero point; the axis of a granularity is part of ``QParams``.

    ``block_size`` 0 with a granularity in blocks: any size, in the op table of a target; qparams have a size.
    ``expanded_bits``: of expanded blocks, the width in which the values are integers with one scale per channel; by
    default twice that of the dtype.
    """

    dtype: DType
    symmetric: bool = False
    granularity: Granularity = Granularity.TENSOR
    block_size: int = 0
    expanded_bits: int = 0

    def __post_init__(self) -> None:
        if not self.dtype.is_quantized and (self.symmetric or self.granularity is not Granularity.TENSOR):
            raise ValueError(f"{self.dtype} is not quantized: it cannot be symmetric or have a granularity")
        if self.dtype is DType.F8E4M3:
            object.__setattr__(self, "symmetric", True)  # float8 has no zero point, so both values mean the same
        if self.block_size < 0 or (self.block_size and not self.is_blocked):
            raise ValueError(
                f"block_size {self.block_size} is not valid for granularity {self.granularity}: it must be above 0 for "
                "block and expanded_block, and 0 for the others"
            )
        if self.granularity is not Granularity.EXPANDED_BLOCK:
            if self.expanded_bits:
                raise ValueError(f"expanded_bits {self.expanded_bits} is only for expanded blocks")
            return
        if not self.expanded_bits:
            object.__setattr__(self, "expanded_bits", 2 * self.dtype.bits)
        if not self.symmetric or self.expanded_bits <= self.dtype.bits:
            raise ValueError(
                f"expanded blocks must be symmetric, and have more than the {self.dtype.bits} bits of {self.dtype} as "
                f"expanded_bits, not {self.expanded_bits}"
            )

    @property
    def is_blocked(self) -> bool:
        """Whether there is one scale per block along an axis."""
        return self.granularity in (Granularity.BLOCK, Granularity.EXPANDED_BLOCK)

    @property
    def scale_bits(self) -> int:
        """The width of the integer scales of expanded blocks: they are from 1 to 2 ** scale_bits."""
        return self.expanded_bits - self.dtype.bits if self.expanded_bits else 0


FLOAT32 = Encoding(DType.F32)
FLOAT16 = Encoding(DType.F16)


@dataclass(frozen=True, slots=True, eq=False)
class QParams:
    """A quantized encoding with its scale and zero point.

    ``scale`` and ``zero_point`` have rank 0 (tensor), rank 1 along ``axis`` (axis), or the tensor's rank with
    ``axis`` divided by the block size (block). real = (stored - zero_point) * scale. ``int_scale``: of expanded blocks,
    in the shape of ``scale``; scale = int_scale * channel_scale (see ``expanded_qparams``).
    """

    encoding: Encoding
    scale: Array
    zero_point: Array
    axis: int | None = None
    int_scale: Array | None = None
    channel_scale: Array | None = None

    def __post_init__(self) -> None:
        if not self.encoding.dtype.is_quantized:
            raise ValueError(f"{self.encoding.dtype} is not quantized: it has no scale and zero point")
        scale = np.array(self.scale, dtype=np.float32)
        zero_point = np.array(self.zero_point, dtype=np.int32)
        if scale.shape != zero_point.shape:
            raise ValueError(f"scale has shape {scale.shape} and zero point {zero_point.shape}: they must be equal")
        if not np.all(np.isfinite(scale)) or not np.all(scale > 0):
            raise ValueError("every scale must be finite and above zero")
        if (self.axis is None) != (self.encoding.granularity is Granularity.TENSOR):
            raise ValueError(
                f"axis {self.axis} is not valid for granularity {self.encoding.granularity}: only tensor has no axis"
            )
        if self.encoding.is_blocked and not self.encoding.block_size:
            raise ValueError(f"granularity {self.encoding.granularity} requires a block size")
        self._check_expansion(scale)
        scale.setflags(write=False)
        zero_point.setflags(write=False)
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "zero_point", zero_point)

    def _check_expansion(self, scale: Array) -> None:
        """Check that only expanded blocks have two levels of scales, and that their product is the scale."""
        if self.encoding.granularity is not Granularity.EXPANDED_BLOCK:
            if self.int_scale is not None or self.channel_scale is not None:
                raise ValueError(f"granularity {self.encoding.granularity} has no int_scale and no channel_scale")
            return
        if self.int_scale is None or self.channel_scale is None:
            raise ValueError("expanded blocks require an int_scale and a channel_scale")
        effective = effective_scale(self.int_scale, self.channel_scale)
        if self.int_scale.shape != scale.shape or not np.array_equal(effective, scale):
            raise ValueError("the scale of expanded blocks must be int_scale * channel_scale")
        if self.int_scale.min(initial=1) < 1 or self.int_scale.max(initial=1) > 1 << self.encoding.scale_bits:
            raise ValueError(f"every int_scale must be from 1 to {1 << self.encoding.scale_bits}")

    @property
    def dtype(self) -> DType:
        return self.encoding.dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QParams) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        levels = tuple(None if level is None else level.tobytes() for level in (self.int_scale, self.channel_scale))
        return (self.encoding, self.axis, self.scale.shape, self.scale.tobytes(), self.zero_point.tobytes(), levels)


def int_scale_dtype(scale_bits: int) -> type[np.unsignedinteger[Any]]:
    """The smallest type that holds integer scales up to 2 ** scale_bits: 256 does not fit uint8."""
    return np.uint8 if 1 << scale_bits <= np.iinfo(np.uint8).max else np.uint16


def effective_scale(int_scale: Array, channel_scale: Array) -> Array:
    """The scale of every expanded block, in float32, as DequantizeLinear computes it from the two levels."""
    return np.asarray(int_scale.astype(np.float32) * channel_scale.astype(np.float32))


def expanded_qparams(encoding: Encoding, channel_scale: Array, int_scale: Array, axis: int) -> QParams:
    """The qparams of expanded blocks along ``axis``: int_scale in the scale's shape, channel_scale of size 1 there."""
    channel_scale, int_scale = np.array(channel_scale, np.float32), np.array(int_scale)
    for level in (channel_scale, int_scale):
        level.setflags(write=False)
    scale = effective_scale(int_scale, channel_scale)
    return QParams(encoding, scale, np.zeros(scale.shape, np.int32), axis, int_scale, channel_scale)
