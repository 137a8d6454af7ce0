"""The histogram of a tensor's observed values over logarithmic bins, which can be summed over batches in one pass.

A bin is the upper 15 bits of a float32 (sign, exponent, 6 bits of the mantissa): 1.6 % wide at any magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.encoding import Array
from dovetail.errors import InputError

BINS = 1 << 15
_SHIFT = 17
_HALF = BINS // 2  # bins from here on hold negative values, in descending order
_FIRST_NONFINITE = 0xFF << 6  # exponent 255, within each half


def histogram_of(real: Array) -> Array:
    """Real values of any shape -> int64 counts (BINS,)."""
    bits = np.ascontiguousarray(real, dtype=np.float32).reshape(-1).view(np.uint32)
    return np.bincount(bits >> _SHIFT, minlength=BINS).astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Counts per bin, with the smallest and largest finite value; ``a + b`` is the histogram of both."""

    counts: Array
    low: float
    high: float

    def __post_init__(self) -> None:
        if np.shape(self.counts) != (BINS,):
            raise InputError(f"a histogram must have {BINS} counts, but their shape is {np.shape(self.counts)}")

    @classmethod
    def of(cls, real: Array) -> Histogram:
        """Real values of any shape -> their histogram; low is inf and high is -inf if no value is finite."""
        real = np.asarray(real, dtype=np.float32)
        low, high = real.min(initial=np.inf), real.max(initial=-np.inf)
        if not (np.isfinite(low) and np.isfinite(high)):
            finite = real[np.isfinite(real)]
            low, high = finite.min(initial=np.inf), finite.max(initial=-np.inf)
        return cls(histogram_of(real), float(low), float(high))

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(self.counts + other.counts, min(self.low, other.low), max(self.high, other.high))

    @property
    def nonfinite(self) -> int:
        """The number of infinities and NaNs, which no range covers."""
        halves = self.counts.reshape(2, _HALF)
        return int(halves[:, _FIRST_NONFINITE:].sum())

    def values(self) -> tuple[Array, Array]:
        """The middle of every non-empty finite bin, in ascending order, and its count."""
        left, right, counts = self.bins()
        return (left + right) / 2, counts

    def bins(self, merge: int = 1) -> tuple[Array, Array, Array]:
        """Left end, right end and count of every non-empty finite bin in ascending order, ``merge`` bins joined to one.

        The ends are clipped to the observed minimum and maximum, each of which is one exactly known value and so gets
        a bin of width zero. The two bins at zero count as zero itself: they hold no magnitude above 2**-128.
        """
        filled = np.flatnonzero(self.counts)
        index = filled // merge
        starts = np.flatnonzero(np.diff(index, prepend=-1))
        counts = np.add.reduceat(self.counts[filled], starts) if filled.size else self.counts[:0]
        negative, magnitude = np.divmod(index[starts], _HALF // merge)
        finite = magnitude < _FIRST_NONFINITE // merge
        ascending = np.concatenate(
            [np.flatnonzero(finite & (negative == 1))[::-1], np.flatnonzero(finite & (negative == 0))]
        )
        negative, magnitude, counts = negative[ascending], magnitude[ascending], counts[ascending]
        inner, outer = _edges(magnitude, merge), _edges(magnitude + 1, merge)
        outer[magnitude == 0] = 0.0
        left, right = np.where(negative, -outer, inner), np.where(negative, -inner, outer)
        return _split_ends(np.clip(left, self.low, self.high), np.clip(right, self.low, self.high), counts)


def _edges(index: Array, merge: int) -> Array:
    """Indices of (merged) bins of positive values -> the lower edges of the bins, as float64."""
    edges = (index.astype(np.uint32) * np.uint32(merge << _SHIFT)).view(np.float32).astype(np.float64)
    return np.minimum(edges, np.finfo(np.float32).max)  # the bits after the last finite bin are infinity


def _split_ends(left: Array, right: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Bins -> the same bins, with one value of the first and of the last moved to a bin of width zero at its end."""
    if counts.size == 0:
        return left, right, counts
    counts = np.concatenate([[0], counts, [0]])
    left, right = np.concatenate([left[:1], left, right[-1:]]), np.concatenate([left[:1], right, right[-1:]])
    for outer, inner in ((-1, -2), (0, 1)):
        if counts[inner] > 0:  # a single value is both minimum and maximum
            counts[outer], counts[inner] = 1, counts[inner] - 1
    kept = counts > 0
    return left[kept], right[kept], counts[kept]
