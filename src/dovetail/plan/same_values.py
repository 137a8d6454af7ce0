"""Quantization parameters in another encoding that represents exactly the same values."""

from __future__ import annotations

from dataclasses import replace

from dovetail.encoding import Encoding, Granularity, QParams


def in_encoding(params: QParams, encoding: Encoding) -> QParams | None:
    """The same scale and zero point in an encoding; None where it cannot represent them."""
    if params.dtype is not encoding.dtype or params.axis is not None or encoding.granularity is not Granularity.TENSOR:
        return None
    if encoding.symmetric and (not params.encoding.symmetric or params.zero_point.any()):
        return None
    return QParams(encoding, params.scale, params.zero_point)


def with_sign_of(params: QParams, encoding: Encoding) -> QParams:
    """The same grid in the signed or unsigned dtype of an encoding: int8 with zero point z is uint8 with z + 128."""
    given, wanted = params.dtype, encoding.dtype
    if given is wanted or not given.is_integer or not wanted.is_integer or given.bits != wanted.bits:
        return params
    zero_point = params.zero_point + (wanted.grid.low - given.grid.low)
    return QParams(
        replace(params.encoding, dtype=wanted, symmetric=encoding.symmetric), params.scale, zero_point, params.axis
    )


def as_symmetric(params: QParams, required: Encoding) -> QParams | None:
    """The same values in a symmetric encoding: uint16 with zero point 32768 is int16; None if they are not the same."""
    if not required.symmetric or not required.dtype.is_integer or params.axis is not None:
        return None
    return in_encoding(with_sign_of(params, required), required)
