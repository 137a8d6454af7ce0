"""Error measures between two arrays (SQNR, cosine, maximum error), in float64, summed batch by batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dovetail.encoding import Array
from dovetail.errors import InputError

_CHUNK = 1 << 15  # elements; two float64 chunks and their difference fit into the L2 cache


@dataclass(frozen=True, slots=True)
class Comparison:
    """The sums over all compared elements; ``a + b`` compares both sets, ``Comparison()`` is empty."""

    count: int = 0
    equal: int = 0
    signal: float = 0.0
    other: float = 0.0
    product: float = 0.0
    noise: float = 0.0
    max_abs_error: float = 0.0

    @classmethod
    def of(cls, reference: Array, other: Array) -> Comparison:
        """Two arrays of the same shape -> their sums."""
        if np.shape(reference) != np.shape(other):
            raise InputError(f"cannot compare shapes {np.shape(reference)} and {np.shape(other)}")
        left, right = np.asarray(reference).reshape(-1), np.asarray(other).reshape(-1)
        total = cls()
        for start in range(0, left.size, _CHUNK):
            total += cls._of_chunk(left[start : start + _CHUNK], right[start : start + _CHUNK])
        return total

    @classmethod
    def _of_chunk(cls, left: Array, right: Array) -> Comparison:
        equal = int(np.count_nonzero(left == right))
        a, b = left.astype(np.float64), right.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            signal, other, product = float(a @ a), float(b @ b), float(a @ b)
            a -= b
            noise = float(a @ a)
            largest = float(np.max(np.abs(a, out=a)))
        return cls(left.size, equal, signal, other, product, noise, largest)

    def __add__(self, more: Comparison) -> Comparison:
        return Comparison(
            self.count + more.count,
            self.equal + more.equal,
            self.signal + more.signal,
            self.other + more.other,
            self.product + more.product,
            self.noise + more.noise,
            float(np.maximum(self.max_abs_error, more.max_abs_error)),  # keeps a NaN, where max() may lose it
        )

    @property
    def sqnr_db(self) -> float:
        """10 log10(sum ref^2 / sum (ref - other)^2): inf if identical, -inf if only the reference is all zero.

        NaN if any element is NaN, if equal infinities are compared, or if nothing was compared.
        """
        if self.count == 0 or math.isnan(self.noise) or math.isnan(self.signal):
            return math.nan
        if self.noise == 0.0:
            return math.inf
        if self.signal == 0.0 or math.isinf(self.noise):
            return -math.inf
        return 10.0 * (math.log10(self.signal) - math.log10(self.noise))

    @property
    def cosine(self) -> float:
        """Cosine similarity: 1 if both are all zero, 0 if one is, NaN if either is empty or not finite."""
        if self.count == 0 or not math.isfinite(self.signal) or not math.isfinite(self.other):
            return math.nan
        if self.noise == 0.0:
            return 1.0
        if self.signal == 0.0 or self.other == 0.0:
            return 0.0
        return max(-1.0, min(1.0, self.product / (math.sqrt(self.signal) * math.sqrt(self.other))))

    @property
    def equal_fraction(self) -> float:
        """The fraction of equal elements, the measure for integers; NaN if nothing was compared."""
        return self.equal / self.count if self.count else math.nan


def sqnr_db(reference: Array, other: Array) -> float:
    """Signal-to-quantization-noise ratio in decibels; ``Comparison.sqnr_db`` defines the special cases."""
    return Comparison.of(reference, other).sqnr_db


def cosine(reference: Array, other: Array) -> float:
    """Cosine similarity of two arrays as vectors."""
    return Comparison.of(reference, other).cosine


def max_abs_error(reference: Array, other: Array) -> float:
    """The largest difference between two elements; 0 for empty arrays."""
    return Comparison.of(reference, other).max_abs_error


def equal_fraction(reference: Array, other: Array) -> float:
    """The fraction of equal elements."""
    return Comparison.of(reference, other).equal_fraction
