"""Int32 biases: their scale is input scale x weight scale, so a large bias may overflow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.encoding import Array, DType, Encoding, Granularity, QParams
from dovetail.errors import InputError

# Half of int32: the other half is left for the dot product that is summed in the same accumulator
# (int8 x uint8 over 30 000 terms stays below it).
BIAS_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class BiasOverflow:
    """The channels whose bias is too large for its scale.

    ``steps``: per channel listed, the bias as a multiple of its scale. ``growth``: the smallest factor by which the
    weight's (or the input's) scale must grow for the bias to fit.
    """

    channels: tuple[int, ...]
    steps: tuple[float, ...]
    growth: tuple[float, ...]


def bias_params(input_scale: Array | float, weight_scale: Array, axis: int = 0, *, label: str = "the bias") -> QParams:
    """Scale of the input (rank 0) and of the weight (rank 0 or 1) -> the bias's int32 qparams, with their product.

    The product is computed in float32, as in the kernels. ``label`` names the bias in error messages.
    """
    source = np.asarray(input_scale, dtype=np.float32)
    weight = np.asarray(weight_scale, dtype=np.float32)
    if source.ndim != 0 or weight.ndim > 1:
        raise InputError(
            f"the scale of {label} requires one input scale and at most one weight scale per channel, "
            f"but their shapes are {source.shape} and {weight.shape}"
        )
    with np.errstate(over="ignore", under="ignore"):
        scale = np.asarray(source * weight)
    if not np.all(np.isfinite(scale)) or np.any(scale < np.finfo(np.float32).tiny):
        raise InputError(f"{label} has no valid scale: input scale x weight scale overflows or is subnormal in float32")
    per_axis = weight.ndim == 1
    encoding = Encoding(DType.S32, symmetric=True, granularity=Granularity.AXIS if per_axis else Granularity.TENSOR)
    return QParams(encoding, scale, np.zeros(scale.shape, np.int32), axis if per_axis else None)


def bias_overflow(bias: Array, qparams: QParams, *, label: str = "the bias") -> BiasOverflow | None:
    """The channels of a bias (rank 1) that exceed BIAS_LIMIT steps of its scale, or None if all fit."""
    bias = np.asarray(bias, dtype=np.float64)
    if bias.ndim != 1 or not np.all(np.isfinite(bias)):
        raise InputError(f"{label} must be finite and of rank 1; it has shape {bias.shape}")
    if qparams.scale.ndim == 1 and qparams.scale.shape != bias.shape:
        raise InputError(f"{label} has {bias.size} channels, but {qparams.scale.size} scales")
    steps = np.abs(bias) / qparams.scale.astype(np.float64)
    channels = np.flatnonzero(steps > BIAS_LIMIT)
    if channels.size == 0:
        return None
    over = steps[channels]
    return BiasOverflow(tuple(channels.tolist()), tuple(over.tolist()), tuple((over / BIAS_LIMIT).tolist()))
