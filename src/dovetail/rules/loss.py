"""How much of a tensor an integer grid turns into zero, and when that is too much; pure NumPy, no graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.encoding import Array, QParams
from dovetail.numerics.block import spread
from dovetail.numerics.grid import SMALLEST_SCALE
from dovetail.numerics.histogram import Histogram

# Of the values that do not set the range. Bell-shaped values lose 1 to 2 % at 8 bits, those behind a Gelu with outliers
# up to some 80 %; above this only the outliers are left.
NEARLY_ALL = 0.99

# Everything that float16 can hold (to 65504) is at most half a step of this, and so becomes zero.
ABSURD_STEP = 2 * 65504.0


@dataclass(frozen=True, slots=True)
class QuantizationLoss:
    """What a grid does to a tensor: its (largest) step, the share of the body that becomes zero, the verdict.

    The body is the non-zero values below half of the largest magnitude: the others set the range. The share is None
    where only the range is known.
    """

    step: float
    share: float | None
    unserved: bool


def loss_of_range(params: QParams) -> QuantizationLoss:
    """A grid over values that are not known."""
    step = float(params.scale.max())
    return QuantizationLoss(step, None, step >= ABSURD_STEP)


def loss_of_tensor(array: Array, params: QParams) -> QuantizationLoss:
    """A grid, of any granularity, over the values of a tensor that is not empty."""
    shape, scale, _ = spread(array.shape, params)
    return _loss(np.abs(array.reshape(shape), dtype=np.float32), scale, None)


def loss_of_counts(histogram: Histogram, params: QParams) -> QuantizationLoss:
    """A grid with one scale over values that were counted."""
    values, counts = histogram.values()
    return _loss(np.abs(values), params.scale.max(), counts)


def _loss(magnitude: Array, step: Array, counts: Array | None) -> QuantizationLoss:
    lost = (magnitude > 0) & (magnitude <= step / 2)  # ties go to even, and zero is even
    lost &= step > SMALLEST_SCALE  # else the values are too small, not too far apart
    body = (magnitude > 0) & (magnitude < magnitude.max(initial=0) / 2)
    size = _total(body, counts)
    share = _total(body & lost, counts) / size if size else 0.0
    unserved = share >= NEARLY_ALL or bool((lost & (step >= ABSURD_STEP)).any())
    return QuantizationLoss(float(step.max()), share, unserved)


def _total(chosen: Array, counts: Array | None) -> int:
    return int(np.count_nonzero(chosen) if counts is None else counts[chosen].sum())
