"""A range of real values -> the scale and zero point with which an encoding covers it."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from dovetail.encoding import Array, DType, Encoding, IntGrid
from dovetail.errors import InputError

# The scale of a bias is the product of two scales, and the product of two of these is still a normal float32
# (2**-126); hardware that flushes subnormals would read a smaller one as zero.
SMALLEST_SCALE = 2.0**-63

# The scale of a tensor in which only zeros were observed: any scale is exact, and 1 does not change a product.
SCALE_OF_ZEROS = 1.0

FLOAT8_HIGHEST = float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max)
FLOAT8_SMALLEST = float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).smallest_subnormal)


def scale_and_zero_point(low: Array | float, high: Array | float, encoding: Encoding) -> tuple[Array, Array]:
    """Lowest and highest real value, of any shape -> float32 scale and int32 zero point of that shape.

    The range is widened to contain zero, which is then exactly on the grid. Symmetric, and always for float8:
    scale = max(|low|, |high|) / highest. Asymmetric: scale = (high - low) / (qmax - qmin), zero point =
    round(qmin - low / scale).
    """
    low = np.minimum(np.asarray(low, dtype=np.float64), 0.0)
    high = np.maximum(np.asarray(high, dtype=np.float64), 0.0)
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        raise InputError("cannot compute a scale: an end of the range is infinite or NaN")
    if encoding.dtype is DType.F8E4M3:
        scale = _safe(np.maximum(-low, high) / FLOAT8_HIGHEST, FLOAT8_HIGHEST)
        return scale, np.zeros(scale.shape, np.int32)
    grid = _grid(encoding)
    if encoding.symmetric:
        middle = 0 if grid.signed else 1 << (grid.bits - 1)
        scale = _safe(np.maximum(-low, high) / (grid.high - middle), grid.high - middle + 1)
        return scale, np.full(scale.shape, middle, np.int32)
    if encoding.dtype is DType.S32:
        raise InputError("int32 must be symmetric: ONNX supports no zero point for it")
    scale = _safe((high - low) / (grid.high - grid.low), grid.high - grid.low)
    zero_point = np.clip(np.rint(grid.low - low / scale), grid.low, grid.high)
    return scale, np.asarray(zero_point, dtype=np.int32)


def _safe(scale: Array, steps: float) -> Array:
    """Float64 scale -> a float32 scale that is neither subnormal nor overflows when multiplied by ``steps``."""
    largest = np.nextafter(np.float32(np.finfo(np.float32).max / steps), np.float32(0))
    bounded = np.clip(scale, SMALLEST_SCALE, float(largest))
    return np.asarray(np.where(scale == 0.0, SCALE_OF_ZEROS, bounded), dtype=np.float32)


def _grid(encoding: Encoding) -> IntGrid:
    if not encoding.dtype.is_integer:
        raise InputError(f"{encoding.dtype} is not a quantized dtype, so it has no scale")
    return encoding.dtype.grid
