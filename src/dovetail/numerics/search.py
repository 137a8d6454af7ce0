"""Range search: the clipping range with the least error for an encoding, from a histogram."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from dovetail.encoding import Array, DType, Encoding, Granularity, QParams
from dovetail.numerics.affine import fake_quantize
from dovetail.numerics.grid import FLOAT8_HIGHEST, FLOAT8_SMALLEST, scale_and_zero_point
from dovetail.numerics.histogram import Histogram

Range = tuple[float, float]
Bins = tuple[Array, Array, Array]  # left ends, right ends, counts
ErrorFunction = Callable[[Array, Array], Array]  # low and high ends of candidates -> their summed squared errors

# Shrink factors are powers of two: a coarse search down to 1/64 (vision transformers have activations whose largest
# value is 50 times the useful range), then finer searches around the best, down to steps of 1 %.
_COARSE = -np.linspace(0.0, 6.0, 13)
_FINER = [np.linspace(-width, width, 7) for width in (0.42, 0.14, 0.045)]
_MERGE = 4  # histogram bins of 1/16 octave are fine enough: within a bin the error is integrated exactly
_COARSE_MERGE = 16

# TensorRT's search does not count the error of clipped values; a range that clips more of the nonzero values than this
# fraction is not a candidate.
ENTROPY_MOST_CLIPPED = 0.01
# The result is discarded if its squared error is more than 6 dB above that of not clipping at all.
ENTROPY_WORST_ERROR_RATIO = 4.0
_ENTROPY_COARSE = -np.linspace(0.0, 6.0, 19)
_ENTROPY_FINER = np.linspace(-1.0, 1.0, 9)
_ENTROPY_SUBCELLS = 4  # subdivisions per grid cell, at which the divergence is evaluated


def minmax(histogram: Histogram, encoding: Encoding) -> Range:
    """The observed minimum and maximum, widened to contain zero."""
    return min(histogram.low, 0.0), max(histogram.high, 0.0)


def percentile(histogram: Histogram, encoding: Encoding, percent: float) -> Range:
    """The range that contains ``percent`` of all values, with equal tails clipped (the tail of |x| if symmetric)."""
    values, counts = histogram.values()
    if encoding.symmetric:
        order = np.argsort(np.abs(values), kind="stable")
        cumulative = np.cumsum(counts[order])
        reach = float(np.abs(values)[order][np.searchsorted(cumulative, percent / 100 * cumulative[-1])])
        return _within(histogram, -reach, reach)
    cumulative = np.cumsum(counts)
    tail = (1.0 - percent / 100) / 2 * cumulative[-1]
    low = values[np.searchsorted(cumulative, tail, side="right")]
    high = values[np.searchsorted(cumulative, cumulative[-1] - tail, side="left")]
    return _within(histogram, float(low), float(high))


def mse(histogram: Histogram, encoding: Encoding) -> Range:
    """The range with the least expected squared error of rounding and clipping together."""
    low, high = minmax(histogram, encoding)
    if encoding.dtype is DType.F8E4M3:
        error = functools.partial(_float8_error, _relevant_bins(histogram.bins(), low, high, encoding))
        return _search(low, high, encoding, error, error, widest=1.0)
    coarse, fine = (
        functools.partial(_grid_error, _relevant_bins(histogram.bins(merge), low, high, encoding), encoding=encoding)
        for merge in (_COARSE_MERGE, _MERGE)
    )
    return _search(low, high, encoding, coarse, fine)


def entropy(histogram: Histogram, encoding: Encoding) -> Range:
    """The range whose quantized distribution has the least Kullback-Leibler divergence from the observed one.

    As in TensorRT, mass outside the range is added to the end cells of the reference but not of the candidate.
    Zeros are ignored, since they have no error. Above 8 bits, and for float8, the grid cells are finer than the
    histogram's bins, and nothing is clipped.
    """
    low, high = minmax(histogram, encoding)
    if encoding.dtype.bits > 8 or encoding.dtype is DType.F8E4M3 or low == high:
        return low, high
    left, right, counts = histogram.bins()
    nonzero = (left != 0) | (right != 0)
    if not nonzero.any():
        return low, high
    positions = np.stack([left[nonzero], right[nonzero]], axis=1).reshape(-1)
    until = np.cumsum(counts[nonzero]) / counts[nonzero].sum()
    cumulative = np.stack([np.concatenate([[0.0], until[:-1]]), until], axis=1).reshape(-1)
    ends = np.asarray([low, high])
    exponents = np.zeros(2)
    both, above, below = np.asarray([1.0, 1.0]), np.asarray([0.0, 1.0]), np.asarray([1.0, 0.0])
    rounds = [(both, _ENTROPY_COARSE), (both, _ENTROPY_FINER)]
    if not encoding.symmetric:
        rounds = [(both, _ENTROPY_COARSE), (above, _ENTROPY_FINER), (below, _ENTROPY_FINER)]
    for sides, offsets in rounds:
        candidates = np.minimum(exponents[:, None] + sides[:, None] * offsets, 0.0)
        lows, highs = ends[:, None] * np.exp2(candidates)
        exponents = candidates[:, np.argmin(_divergence(positions, cumulative, lows, highs, encoding))]
    best = low * float(np.exp2(exponents[0])), high * float(np.exp2(exponents[1]))
    allowed = ENTROPY_WORST_ERROR_RATIO * expected_squared_error(histogram, low, high, encoding)
    return best if expected_squared_error(histogram, *best, encoding) <= allowed else (low, high)


def expected_squared_error(histogram: Histogram, low: float, high: float, encoding: Encoding) -> float:
    """The mean squared error per value if this range quantizes the values of this histogram."""
    lows, highs = np.asarray([low]), np.asarray([high])
    if encoding.dtype is DType.F8E4M3:
        bins = histogram.bins()
        error = _float8_error(bins, lows, highs)
    else:
        bins = histogram.bins(_MERGE)
        error = _grid_error(bins, lows, highs, encoding)
    return float(error[0] / bins[2].sum())


def _within(histogram: Histogram, low: float, high: float) -> Range:
    """The range clipped to the observed one and widened to contain zero; the observed range if it would be empty."""
    observed_low, observed_high = min(histogram.low, 0.0), max(histogram.high, 0.0)
    low, high = max(min(low, 0.0), observed_low), min(max(high, 0.0), observed_high)
    return (observed_low, observed_high) if low == high else (low, high)


def _search(
    low: float, high: float, encoding: Encoding, coarse: ErrorFunction, fine: ErrorFunction, widest: float = 0.0
) -> Range:
    """The range, low and high shrunk jointly, with the least error; the range itself is always a candidate.

    ``widest``: the power of two by which a range may grow; growing shifts the steps of float8.
    """
    center = np.zeros(2)  # exponents of the factors of low and high
    for offsets, error in [(_COARSE + widest, coarse), *((finer, fine) for finer in _FINER)]:
        along = [np.unique(np.minimum(center[side] + offsets, widest)) for side in (0, 1)]
        if encoding.symmetric:
            exponents = np.stack([along[0], along[0]])
        else:
            along = [along[0] if low < 0 else np.zeros(1), along[1] if high > 0 else np.zeros(1)]
            exponents = np.stack([axis.ravel() for axis in np.meshgrid(*along)])
        exponents = np.column_stack([np.zeros(2), center, exponents])  # zeros first, so that a tie does not shrink
        factors = np.exp2(exponents)
        center = exponents[:, np.argmin(error(low * factors[0], high * factors[1]))]
    return float(low * np.exp2(center[0])), float(high * np.exp2(center[1]))


def _relevant_bins(bins: Bins, low: float, high: float, encoding: Encoding) -> Bins:
    """The bins whose error depends on the candidate range: without those that every candidate rounds to zero."""
    grid = None if encoding.dtype is DType.F8E4M3 else encoding.dtype.grid
    steps = grid.high - grid.low if grid else FLOAT8_HIGHEST / FLOAT8_SMALLEST
    smallest_step = max(-low, high) * 2.0 ** _COARSE[-1] / steps
    left, right, counts = bins
    kept = np.maximum(-left, right) > smallest_step / 4
    return left[kept], right[kept], counts[kept]


def _grid_error(bins: Bins, lows: Array, highs: Array, encoding: Encoding) -> Array:
    """Summed squared error (candidates,) of candidate ranges, for values spread evenly within their bins.

    With t = x / scale and n the nearest grid step (an end of the grid for clipped values), the integral of (t - n)^2 up
    to t is n / 12 + (t - n)^3 / 3, inside the range and outside it.
    """
    left, right, counts = bins
    scale, zero_point = scale_and_zero_point(lows, highs, encoding)
    step = scale.astype(np.float64)[:, None]
    lowest, highest = (end - zero_point.astype(np.float64)[:, None] for end in _ends(encoding))
    a, b = left / step, right / step
    width = b - a
    near_a, near_b = np.clip(np.rint(a), lowest, highest), np.clip(np.rint(b), lowest, highest)
    a -= near_a
    b -= near_b
    same = near_a == near_b
    within_one_step = (a * a + a * b + b * b) / 3  # the same integral where a difference of cubes would cancel
    width[same] = 1.0
    across_steps = ((near_b - near_a) / 12 + (b * b * b - a * a * a) / 3) / width
    mean: Array = np.where(same, within_one_step, across_steps)
    return (mean @ counts) * step[:, 0] ** 2


def _float8_error(bins: Bins, lows: Array, highs: Array) -> Array:
    """Summed squared error (candidates,) of the bins' middles quantized to float8."""
    left, right, counts = bins
    values = (left + right) / 2
    reach = np.maximum(-lows, highs)
    per_candidate = Encoding(DType.F8E4M3, granularity=Granularity.AXIS)
    scale, zero_point = scale_and_zero_point(-reach, reach, per_candidate)
    real = np.broadcast_to(values.astype(np.float32), (len(lows), values.size))
    error = fake_quantize(real, QParams(per_candidate, scale, zero_point, axis=0)) - values
    return np.asarray((error * error) @ counts)


def _divergence(positions: Array, cumulative: Array, lows: Array, highs: Array, encoding: Encoding) -> Array:
    """KL divergence (candidates,) of each range's grid cells from a distribution, given by its cumulative fraction
    at positions."""
    scale, zero_point = scale_and_zero_point(lows, highs, encoding)
    lowest, highest = _ends(encoding)
    cells = highest - lowest + 1
    steps = np.arange(cells * _ENTROPY_SUBCELLS + 1) / _ENTROPY_SUBCELLS + lowest - 0.5
    edges = (steps - zero_point[:, None]) * scale.astype(np.float64)[:, None]
    until = np.interp(edges.reshape(-1), positions, cumulative).reshape(edges.shape)
    candidate = np.diff(until[:, ::_ENTROPY_SUBCELLS], axis=1).repeat(_ENTROPY_SUBCELLS, axis=1) / _ENTROPY_SUBCELLS
    clipped = until[:, 0] + 1.0 - until[:, -1]
    reference = np.diff(until, axis=1)
    reference[:, 0] += until[:, 0]
    reference[:, -1] += 1.0 - until[:, -1]
    candidate /= np.maximum(1.0 - clipped, np.finfo(np.float64).tiny)[:, None]
    ratio = np.divide(reference, np.maximum(candidate, 1e-12), out=np.ones_like(reference), where=reference > 0)
    divergence: Array = np.einsum("ij,ij->i", reference, np.log(ratio))
    divergence[clipped > ENTROPY_MOST_CLIPPED] = np.inf
    return divergence


def _ends(encoding: Encoding) -> tuple[int, int]:
    return encoding.dtype.grid.low, encoding.dtype.grid.high
