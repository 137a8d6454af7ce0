"""The logarithmic histogram: every value is counted, batches add up, the bins' middles are near the values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dovetail.errors import InputError
from dovetail.numerics.histogram import BINS, Histogram, histogram_of

any_float32 = arrays(np.float32, st.integers(0, 60), elements=st.floats(width=32))
finite_float32 = arrays(
    np.float32, st.integers(1, 60), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
)


@settings(deadline=None)
@given(any_float32)
def test_every_value_is_counted_once_and_nonfinite_ones_separately(values: np.ndarray) -> None:
    histogram = Histogram.of(values)
    finite = values[np.isfinite(values)]
    assert histogram.counts.dtype == np.int64
    assert histogram.counts.shape == (BINS,)
    assert histogram.counts.sum() == values.size
    assert histogram.nonfinite == values.size - finite.size
    assert histogram.values()[1].sum() == finite.size
    if finite.size:
        assert (histogram.low, histogram.high) == (finite.min(), finite.max())
    else:
        assert (histogram.low, histogram.high) == (math.inf, -math.inf)


@settings(deadline=None)
@given(any_float32, any_float32)
def test_the_sum_is_the_histogram_of_both(first: np.ndarray, second: np.ndarray) -> None:
    both, total = Histogram.of(np.concatenate([first, second])), Histogram.of(first) + Histogram.of(second)
    np.testing.assert_array_equal(both.counts, total.counts)
    assert (both.low, both.high) == (total.low, total.high)


@pytest.mark.parametrize("merge", [1, 4, 16])
@settings(deadline=None)
@given(finite_float32)
def test_bins_contain_their_values(merge: int, values: np.ndarray) -> None:
    histogram = Histogram.of(values)
    left, right, counts = histogram.bins(merge)
    assert np.all(left <= right)
    assert np.all(np.diff(left) >= 0)
    assert np.all(np.diff(right) >= 0)
    assert np.all(counts > 0)
    ranked = np.sort(values)
    tiny = 2.0**-128
    assert np.all(left.repeat(counts) <= ranked + tiny)
    assert np.all(right.repeat(counts) >= ranked - tiny)
    assert np.all(right - left <= np.maximum(np.abs(left), np.abs(right)) * merge / 64 + tiny)


@settings(deadline=None)
@given(finite_float32)
def test_middles_are_within_1_in_64_of_the_values(values: np.ndarray) -> None:
    middles, counts = Histogram.of(values).values()
    np.testing.assert_allclose(middles.repeat(counts), np.sort(values), rtol=1 / 64, atol=2.0**-128)


def test_the_ends_are_exact() -> None:
    middles, counts = Histogram.of(np.asarray([-3.3, -3.31, 1.0, 7.77, 7.78], np.float32)).values()
    assert middles[0] == np.float32(-3.31)
    assert middles[-1] == np.float32(7.78)
    assert counts[0] == counts[-1] == 1


def test_other_dtypes_and_layouts_give_the_same_counts() -> None:
    values = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float16)
    expected = histogram_of(values.astype(np.float32))
    np.testing.assert_array_equal(histogram_of(values), expected)
    np.testing.assert_array_equal(histogram_of(values.astype(np.float64).T), expected)


def test_another_number_of_counts_is_refused() -> None:
    with pytest.raises(InputError, match="counts"):
        Histogram(np.zeros(2048, np.int64), 0.0, 1.0)
