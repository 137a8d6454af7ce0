"""What an encodings file says, whatever its version: one record per tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dovetail.encoding import Array, Granularity

FLOAT_BITS = (16, 32)
MOST_BITS = 32
LEAST_BITS = 2


@dataclass(frozen=True, slots=True, eq=False)
class TensorEncoding:
    """How one tensor is quantized; the numbers are those of the file, in float64 and int64.

    real = (stored - zero_point) * scale, where ``stored`` is an integer of ``bits``, ``signed`` or not. ``scale`` and
    ``zero_point`` have rank 0 (tensor), rank 1 (axis), or as many as there are blocks. A file below 2.0.0 has no axis
    and no shapes: until a model gives them (``with_model``), ``axis`` is None and blocks are a flat array, all blocks
    of the first output channel first. Expanded blocks (LPBQ): ``scale`` is per channel, ``int_scale`` per block.
    ``is_parameter`` is None where the file does not say it (2.0.0). A float tensor has ``bits`` and nothing else.
    """

    name: str
    bits: int
    is_parameter: bool | None = None
    is_float: bool = False
    granularity: Granularity = Granularity.TENSOR
    signed: bool = False
    symmetric: bool = False
    scale: Array = field(default_factory=lambda: np.ones(()))
    zero_point: Array = field(default_factory=lambda: np.zeros((), np.int64))
    axis: int | None = None
    block_size: int = 0
    int_scale: Array | None = None
    expanded_bits: int = 0

    @property
    def lowest(self) -> int:
        """The smallest stored integer."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def offset(self) -> Array:
        """The zero point as files below 2.0.0 have it: negated, on the unsigned grid."""
        return np.asarray(self.lowest - self.zero_point)

    @property
    def dtype_text(self) -> str:
        """The dtype in the words of 2.0.0 files: ``int8``, ``uint16``, ``float16``."""
        if self.is_float:
            return f"float{self.bits}"
        return f"{'' if self.signed else 'u'}int{self.bits}"

    @property
    def is_blocked(self) -> bool:
        return self.granularity in (Granularity.BLOCK, Granularity.EXPANDED_BLOCK)

    @property
    def needs_shape(self) -> bool:
        """Whether only the model says how the scales belong to the tensor's elements."""
        return self.granularity is not Granularity.TENSOR and self.axis is None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorEncoding) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        int_scale = None if self.int_scale is None else (self.int_scale.shape, self.int_scale.tobytes())
        labels = (self.name, self.bits, self.is_parameter, self.is_float, self.granularity, self.signed, self.symmetric)
        layout = (self.axis, self.block_size, self.expanded_bits, self.scale.shape)
        return (*labels, *layout, self.scale.tobytes(), self.zero_point.tobytes(), int_scale)


@dataclass(frozen=True, slots=True, eq=False)
class Encodings:
    """An encodings file: its entries by name, in the order of the file.

    ``header``: the other keys of the file that say how it was made (``producer``, ``quantizer_args``). ``ignored``:
    keys that are not understood, each with the entry that has it.
    """

    version: str
    entries: Mapping[str, TensorEncoding]
    header: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
