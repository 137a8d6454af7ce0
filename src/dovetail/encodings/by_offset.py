"""Integer encodings of files below 2.0.0: scale and offset on the unsigned grid."""

from __future__ import annotations

from typing import Any

import numpy as np

from dovetail.encoding import Array
from dovetail.encodings.records import TensorEncoding


def integer_encoding(name: str, bits: int, symmetric: bool, scale: Array, offset: Array, **more: Any) -> TensorEncoding:
    """The encoding of an offset, which is from -(2**bits - 1) to 0 on the grid of unsigned integers.

    Symmetric with offset -2**(bits - 1) is a signed dtype with zero point 0, any other offset an unsigned dtype.
    """
    middle = -(1 << (bits - 1))
    signed = symmetric and (int(offset) == middle if offset.ndim == 0 else bool(np.all(offset == middle)))
    zero_point = (middle if signed else 0) - offset
    return TensorEncoding(
        name, bits, signed=signed, symmetric=symmetric, scale=scale, zero_point=np.asarray(zero_point), **more
    )


def changed_label(entry: TensorEncoding) -> str:
    """What a file below 2.0.0 cannot say of an entry although it has the same real values; empty if it can say all."""
    if entry.signed and (entry.zero_point.any() or not entry.symmetric):
        return f"{entry.dtype_text} with a zero point other than 0 is written as uint{entry.bits} with the same values"
    return ""
