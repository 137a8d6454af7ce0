"""Real values to stored values and back, bit for bit as ONNX Runtime's CPU kernels do it.

Measured on onnxruntime 1.31.1 at opset 21, and held by the tests: x / scale is a float32 division, ties go to even,
the zero point is added after rounding, both ends saturate, NaN becomes the lowest integer. There is one departure:
some of its kernels (4-bit along the last axis or where a pair of values is cut, every dtype in blocks along an axis
that is not the last) convert to int32 before they saturate, so NaN and |x / scale| >= 2**31 come out at either end,
in C++ terms undefined. We saturate there as its other kernels do. ONNX has no int32 QuantizeLinear; ours, for
biases, divides in float64.
"""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np

from dovetail.encoding import Array, DType, QParams
from dovetail.errors import InputError
from dovetail.numerics.block import spread

_NIBBLES = {DType.U4: np.dtype(np.uint8), DType.S4: np.dtype(np.int8)}


def quantize(real: Array, qparams: QParams) -> Array:
    """Real values -> stored values of the same shape, in the NumPy dtype of the encoding."""
    real = np.asarray(real)
    dtype = qparams.dtype
    _check_zero_point(qparams)
    if dtype is DType.F8E4M3:
        shape, scale, _ = spread(real.shape, qparams)
        return _to_float8(_divide(real.reshape(shape), scale)).reshape(real.shape)
    on_grid, _, _ = _on_grid(real, qparams)
    wide = on_grid.astype(_NIBBLES.get(dtype, dtype.numpy)).reshape(real.shape)
    if dtype in _NIBBLES:
        wide &= 0x0F  # ml_dtypes keeps the upper half of the byte clear
        return wide.view(dtype.numpy)
    return wide


def dequantize(stored: Array, qparams: QParams) -> Array:
    """Stored values -> float32 real values of the same shape: (stored - zero point) * scale."""
    stored = np.asarray(stored)
    if stored.dtype != qparams.dtype.numpy:
        raise InputError(f"stored values are {stored.dtype}, the encoding says {qparams.dtype}")
    _check_zero_point(qparams)
    shape, scale, zero_point = spread(stored.shape, qparams)
    if qparams.dtype is DType.F8E4M3:
        real = _float8_to_float32().take(stored.view(np.uint8).reshape(shape))
    else:
        real = stored.reshape(shape).astype(np.float32)
    if zero_point.any():
        real -= zero_point.astype(np.float32)  # exact: at most 16 bits on either side
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        real *= scale
    return real.reshape(stored.shape)


def fake_quantize(real: Array, qparams: QParams) -> Array:
    """Real values -> the float32 values that come back after storing, equal to dequantize(quantize(real))."""
    real = np.asarray(real)
    if qparams.dtype in (DType.F8E4M3, DType.S32):
        return dequantize(quantize(real, qparams), qparams)
    _check_zero_point(qparams)
    steps, scale, zero_point = _on_grid(real, qparams)
    if zero_point.any():
        steps -= zero_point
    else:
        steps += zero_point  # makes -0.0, which no integer is, to 0.0
    with np.errstate(over="ignore", under="ignore"):
        steps *= scale
    return steps.reshape(real.shape)


def _on_grid(real: Array, qparams: QParams) -> tuple[Array, Array, Array]:
    """Real values -> (stored values still as floats, scale, zero point as float), in broadcasting shapes.

    Adding the zero point in float32 is exact wherever the sum is not far outside the grid.
    """
    shape, scale, zero_point = spread(real.shape, qparams)
    grid = qparams.dtype.grid
    if qparams.dtype is DType.S32:
        real, scale = real.astype(np.float64), scale.astype(np.float64)
    stored = _divide(real.reshape(shape), scale)
    np.rint(stored, out=stored)
    zero_point = zero_point.astype(stored.dtype)
    if zero_point.any():
        stored += zero_point
    np.clip(stored, grid.low, grid.high, out=stored)
    if stored.size and np.isnan(stored.min()):
        stored[np.isnan(stored)] = grid.low
    return stored, scale, zero_point


def _divide(real: Array, scale: Array) -> Array:
    if scale.dtype == np.float32:
        real = real.astype(np.float32, copy=False)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(np.divide(real, scale))


def _to_float8(real: Array) -> Array:
    """Float32 -> float8e4m3fn, ties to even, saturating; NaN stays NaN.

    The upper 16 bits with the rest folded into the last of them are the value rounded to odd: enough bits for the
    second rounding to come out as one, so a table of 65536 entries does it, in less than half the time of a cast.
    """
    bits = np.atleast_1d(real).view(np.uint32)
    index = bits >> 16
    index |= (bits & 0xFFFF) != 0
    return _bfloat16_to_float8().take(index).reshape(real.shape)


@cache
def _bfloat16_to_float8() -> Array:
    real = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    highest = float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.clip(real, -highest, highest).astype(ml_dtypes.float8_e4m3fn))


@cache
def _float8_to_float32() -> Array:
    stored: Array = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    return stored.astype(np.float32)


def _check_zero_point(qparams: QParams) -> None:
    zero_point = qparams.zero_point
    if qparams.dtype in (DType.F8E4M3, DType.S32):
        if zero_point.any():
            raise InputError(f"{qparams.dtype} takes no zero point other than 0")
        return
    grid = qparams.dtype.grid
    if zero_point.size and (zero_point.min() < grid.low or zero_point.max() > grid.high):
        raise InputError(f"a zero point outside {grid.low}..{grid.high} does not fit {qparams.dtype}")
