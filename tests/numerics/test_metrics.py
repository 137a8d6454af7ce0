"""Error measures against their formulas, at once and in batches, and their special cases."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dovetail.encoding import DType
from dovetail.errors import InputError
from dovetail.numerics.metrics import Comparison, cosine, equal_fraction, max_abs_error, sqnr_db

pairs = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*[arrays(np.float32, n, elements=st.floats(-(2.0**100), 2.0**100, width=32))] * 2)
)


@settings(deadline=None)
@given(pairs)
def test_measures_equal_their_formulas(pair: tuple[np.ndarray, np.ndarray]) -> None:
    reference, other = (array.astype(np.float64) for array in pair)
    noise, signal = np.sum((reference - other) ** 2), np.sum(reference**2)
    if noise and signal:
        assert sqnr_db(*pair) == pytest.approx(10 * np.log10(signal / noise), abs=1e-6)
    if signal and other.any():
        expected = reference @ other / (np.linalg.norm(reference) * np.linalg.norm(other))
        assert cosine(*pair) == pytest.approx(expected, abs=1e-9)
    assert max_abs_error(*pair) == np.abs(reference - other).max()
    assert equal_fraction(*pair) == np.mean(reference == other)


@settings(deadline=None)
@given(pairs, st.lists(st.integers(0, 40), max_size=4))
def test_batches_add_up(pair: tuple[np.ndarray, np.ndarray], cuts: list[int]) -> None:
    reference, other = pair
    edges = [0, *sorted(min(cut, reference.size) for cut in cuts), reference.size]
    batches = [Comparison.of(reference[a:b], other[a:b]) for a, b in pairwise(edges)]
    total, once = sum(batches, Comparison()), Comparison.of(reference, other)
    assert (total.count, total.equal, total.max_abs_error) == (once.count, once.equal, once.max_abs_error)
    assert total.sqnr_db == pytest.approx(once.sqnr_db, abs=1e-9)
    assert total.cosine == pytest.approx(once.cosine, abs=1e-9)


def test_long_arrays_are_summed_over_all_chunks() -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(3, 50_021)).astype(np.float32)
    other = reference + np.float32(0.01) * rng.normal(size=reference.shape).astype(np.float32)
    noise = np.sum((reference.astype(np.float64) - other) ** 2)
    expected = 10 * np.log10(np.sum(reference.astype(np.float64) ** 2) / noise)
    assert sqnr_db(reference, other) == pytest.approx(expected, abs=1e-9)
    other.flat[-1] += 5
    assert max_abs_error(reference, other) == pytest.approx(5, abs=0.1)
    assert equal_fraction(reference, np.where(np.arange(50_021) % 4 == 0, reference, 9.0)) == pytest.approx(
        0.25, abs=1e-4
    )


def test_a_known_ratio() -> None:
    assert sqnr_db(np.full(8, 10.0), np.full(8, 9.0)) == pytest.approx(20.0)
    assert cosine(np.asarray([1.0, 0.0]), np.asarray([1.0, 1.0])) == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize(
    ("reference", "other", "sqnr", "cos", "largest"),
    [
        ([1.0, 2.0], [1.0, 2.0], math.inf, 1.0, 0.0),
        ([0.0, 0.0], [0.0, 0.0], math.inf, 1.0, 0.0),
        ([0.0, 0.0], [0.0, 3.0], -math.inf, 0.0, 3.0),
        ([0.0, 3.0], [0.0, 0.0], 0.0, 0.0, 3.0),
        ([1.0, math.nan], [1.0, 2.0], math.nan, math.nan, math.nan),
        ([1.0, 2.0], [math.nan, 2.0], math.nan, math.nan, math.nan),
        ([1.0, 2.0], [math.inf, 2.0], -math.inf, math.nan, math.inf),
        ([1.0, math.inf], [1.0, math.inf], math.nan, math.nan, math.nan),
        ([1.0, math.inf], [1.0, 2.0], -math.inf, math.nan, math.inf),
        ([], [], math.nan, math.nan, 0.0),
    ],
)
def test_special_cases(reference, other, sqnr: float, cos: float, largest: float) -> None:
    comparison = Comparison.of(np.asarray(reference, np.float32), np.asarray(other, np.float32))
    np.testing.assert_equal([comparison.sqnr_db, comparison.cosine, comparison.max_abs_error], [sqnr, cos, largest])


def test_a_nan_in_one_batch_is_not_lost() -> None:
    clean, dirty = Comparison.of(np.ones(3), np.zeros(3)), Comparison.of(np.asarray([np.nan]), np.zeros(1))
    for total in (clean + dirty, dirty + clean):
        assert math.isnan(total.sqnr_db)
        assert math.isnan(total.max_abs_error)


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.is_integer])
def test_integers_are_compared_by_the_fraction_of_equal_elements(dtype: DType) -> None:
    reference = np.asarray([0, 1, 2, 7]).astype(dtype.numpy)
    other = np.asarray([0, 1, 3, 7]).astype(dtype.numpy)
    assert equal_fraction(reference, other) == 0.75
    assert max_abs_error(reference, other) == 1.0


def test_unsigned_differences_do_not_wrap() -> None:
    assert max_abs_error(np.asarray([0], np.uint8), np.asarray([255], np.uint8)) == 255.0


def test_an_empty_comparison_has_no_equal_fraction() -> None:
    assert math.isnan(Comparison().equal_fraction)


def test_different_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="shapes"):
        sqnr_db(np.zeros((2, 3)), np.zeros((3, 2)))
