"""How many values of a tensor quantize to zero, and when that is too many; pure NumPy, no graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.encoding import Array, QParams
from dovetail.numerics.block import spread
from dovetail.numerics.grid import SMALLEST_SCALE
from dovetail.numerics.histogram import Histogram

# Share of the values that do not set the range. Of normally distributed values 1 to 2 % quantize to zero at 8 bits, of
# the output of a Gelu with outliers up to about 80 %; above this limit only the outliers are left.
NEARLY_ALL = 0.99

# Every finite float16 value (up to 65504) is at most half of this step, and so quantizes to zero.
ABSURD_STEP = 2 * 65504.0


@dataclass(frozen=True, slots=True)
class QuantizationLoss:
    """What quantizing a tensor loses.

    ``step``: the (largest) scale. ``lost_share``: how much of the body quantizes to zero; None if only the range is
    known. The body is the non-zero values below half of the largest magnitude, which do not set the range.
    ``too_coarse``: whether nearly all information is lost.
    """

    step: float
    lost_share: float | None
    too_coarse: bool


def loss_of_range(params: QParams) -> QuantizationLoss:
    """The loss of quantizing a tensor of which only the range is known."""
    step = float(params.scale.max())
    return QuantizationLoss(step, None, step >= ABSURD_STEP)


def loss_of_tensor(array: Array, params: QParams) -> QuantizationLoss:
    """The loss of quantizing a non-empty tensor, with scales of any granularity."""
    shape, scale, _ = spread(array.shape, params)
    return _loss(np.abs(array.reshape(shape), dtype=np.float32), scale, None)


def loss_of_counts(histogram: Histogram, params: QParams) -> QuantizationLoss:
    """The loss of quantizing the values of a histogram with one scale."""
    values, counts = histogram.values()
    return _loss(np.abs(values), params.scale.max(), counts)


def _loss(magnitude: Array, step: Array, counts: Array | None) -> QuantizationLoss:
    lost = (magnitude > 0) & (magnitude <= step / 2)  # half a step rounds to the even integer, which is zero
    lost &= step > SMALLEST_SCALE  # otherwise the values are too small, not the range too wide
    body = (magnitude > 0) & (magnitude < magnitude.max(initial=0) / 2)
    size = _total(body, counts)
    lost_share = _total(body & lost, counts) / size if size else 0.0
    too_coarse = lost_share >= NEARLY_ALL or bool((lost & (step >= ABSURD_STEP)).any())
    return QuantizationLoss(float(step.max()), lost_share, too_coarse)


def _total(mask: Array, counts: Array | None) -> int:
    return int(np.count_nonzero(mask) if counts is None else counts[mask].sum())
