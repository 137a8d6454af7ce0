"""Range searches over histograms and weights, judged by the error measured on the real values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dovetail.encoding import Array, DType, Encoding, Granularity
from dovetail.errors import InputError
from dovetail.numerics.affine import fake_quantize
from dovetail.numerics.ranges import Histogram, RangeMethod, find_range, params_from_range, weight_params
from dovetail.numerics.search import ENTROPY_MOST_CLIPPED, ENTROPY_WORST_ERROR_RATIO, expected_squared_error

METHODS = list(RangeMethod)
ENCODINGS = [
    Encoding(DType.U8),
    Encoding(DType.S8, True),
    Encoding(DType.U8, True),
    Encoding(DType.U16),
    Encoding(DType.S16, True),
    Encoding(DType.S4, True),
    Encoding(DType.U4),
    Encoding(DType.F8E4M3),
]
values = arrays(np.float32, st.integers(1, 50), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


def distribution(name: str) -> Array:
    rng = np.random.default_rng(5)
    normal = rng.normal(size=60_000)
    distributions = {
        "normal": normal,
        "shifted": normal + 2,
        "relu": np.maximum(normal, 0),
        "gelu": normal * 0.5 * (1 + np.tanh(0.8 * (normal + 0.045 * normal**3))),
        "laplace": rng.laplace(size=60_000),
        "outliers": np.where(rng.random(60_000) < 3e-4, normal * 60, normal),
        "one_outlier": np.append(normal, 1000.0),
        "softmax": np.exp(4 * normal - 12),
        "negative": -np.abs(normal),
        "sparse": np.where(rng.random(60_000) < 1e-3, np.abs(normal) + 1, 0),
        "huge": normal * 1e34,
        "tiny": normal * 1e-12,
    }
    return distributions[name].astype(np.float32)


DISTRIBUTIONS = [
    "normal", "shifted", "relu", "gelu", "laplace", "outliers", "one_outlier", "softmax", "negative", "sparse", "huge",
    "tiny",
]  # fmt: skip


def range_by(method: str, real: Array, encoding: Encoding, **options: float) -> tuple[float, float]:
    histogram = Histogram.of(real)
    return find_range(method, histogram.counts, histogram.low, histogram.high, encoding, **options)


def measured_error(real: Array, ends: tuple[float, float], encoding: Encoding) -> float:
    back = fake_quantize(real, params_from_range(*ends, encoding)).astype(np.float64)
    return float(np.mean((back - real) ** 2))


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=12, deadline=None)
@given(real=values)
def test_any_values_give_a_range_with_zero_inside_the_observed_one(
    method: str, encoding: Encoding, real: Array
) -> None:
    low, high = range_by(method, real, encoding)
    # The range of float8 may grow to twice the observed one: a factor between 1 and 2 shifts all steps of its grid.
    widest = 2.0 if method == "mse" and encoding.dtype is DType.F8E4M3 else 1.0
    assert widest * min(float(real.min()), 0.0) <= low <= 0.0 <= high <= widest * max(float(real.max()), 0.0)
    assert low < high or not real.any()
    params_from_range(low, high, encoding)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
@settings(max_examples=12, deadline=None)
@given(real=values)
def test_by_its_own_measure_mse_is_never_worse_than_minmax(encoding: Encoding, real: Array) -> None:
    histogram = Histogram.of(real)
    ours = expected_squared_error(histogram, *range_by("mse", real, encoding), encoding)
    assert ours <= expected_squared_error(histogram, *range_by("minmax", real, encoding), encoding) * (1 + 1e-9)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_expected_error_is_near_the_measured_one(name: str, encoding: Encoding) -> None:
    real = distribution(name)
    for shrink in (1.0, 0.6):
        ends = (min(float(real.min()), 0.0) * shrink, max(float(real.max()), 0.0) * shrink)
        assert expected_squared_error(Histogram.of(real), *ends, encoding) == pytest.approx(
            measured_error(real, ends, encoding), rel=0.1
        )


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_mse_is_close_to_the_best_of_many_ranges(name: str, encoding: Encoding) -> None:
    """Measured on the values themselves, against 12 x 12 shrunk ranges."""
    real = distribution(name)[::20]
    low, high = range_by("minmax", real, encoding)
    factors = np.exp2(-np.linspace(0, 5.5, 12))
    pairs = [(f, f) for f in factors] if encoding.symmetric else None
    pairs = pairs or [(f, g) for f in (factors if low < 0 else [1.0]) for g in (factors if high > 0 else [1.0])]
    best = min(measured_error(real, (low * f, high * g), encoding) for f, g in pairs)
    assert measured_error(real, range_by("mse", real, encoding), encoding) <= best * 1.05


@pytest.mark.parametrize("encoding", [Encoding(DType.U8), Encoding(DType.S8, True)], ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_entropy_is_not_much_worse_than_minmax(name: str, encoding: Encoding) -> None:
    real = distribution(name)
    minmax, entropy = (
        measured_error(real, range_by(method, real, encoding), encoding) for method in ("minmax", "entropy")
    )
    assert entropy <= minmax * ENTROPY_WORST_ERROR_RATIO * 1.1


@pytest.mark.parametrize("encoding", [Encoding(DType.U4), Encoding(DType.S4, True), Encoding(DType.U8)], ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_entropy_clips_few_values(name: str, encoding: Encoding) -> None:
    real = distribution(name)
    low, high = range_by("entropy", real, encoding)
    qparams = params_from_range(low, high, encoding)
    ends = (
        np.asarray([encoding.dtype.grid.low - 0.5, encoding.dtype.grid.high + 0.5]) - qparams.zero_point
    ) * qparams.scale
    clipped = np.count_nonzero((real < ends[0]) | (real > ends[1])) / np.count_nonzero(real)
    assert clipped <= 1.1 * ENTROPY_MOST_CLIPPED


def test_outliers_are_clipped_where_that_lowers_the_error() -> None:
    real, encoding = distribution("outliers"), Encoding(DType.S8, True)
    whole, mse, entropy = (range_by(method, real, encoding) for method in ("minmax", "mse", "entropy"))
    assert mse[1] < 0.8 * whole[1]
    assert entropy[1] < 0.5 * whole[1]
    assert measured_error(real, mse, encoding) < 0.8 * measured_error(real, whole, encoding)


@pytest.mark.parametrize("method", ["mse", "entropy"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_16_bits_are_not_much_worse_than_minmax(method: str, name: str) -> None:
    real, encoding = distribution(name), Encoding(DType.U16)
    assert measured_error(real, range_by(method, real, encoding), encoding) <= 1.01 * measured_error(
        real, range_by("minmax", real, encoding), encoding
    )


@pytest.mark.parametrize("percent", [90.0, 99.0, 99.99])
def test_percentile_clips_both_tails_equally(percent: float) -> None:
    real = distribution("shifted")
    low, high = range_by("percentile", real, Encoding(DType.U8), percent=percent)
    tail = (100 - percent) / 2
    expected = np.percentile(real, [tail, 100 - tail])
    assert (low, high) == pytest.approx((min(expected[0], 0.0), expected[1]), rel=1 / 32)
    low, high = range_by("percentile", real, Encoding(DType.S8, True), percent=percent)
    assert high == pytest.approx(np.percentile(np.abs(real), percent), rel=1 / 32)
    assert low == pytest.approx(-high if -high > real.min() else real.min())


def test_percentile_100_is_minmax() -> None:
    real = distribution("normal")
    for encoding in (Encoding(DType.U8), Encoding(DType.S8, True)):
        assert range_by("percentile", real, encoding, percent=100.0) == range_by("minmax", real, encoding)


def test_percentile_does_not_clip_a_sparse_tensor_to_zero() -> None:
    real = np.zeros(10**6, np.float32)
    real[:3] = 4.0
    assert range_by("percentile", real, Encoding(DType.U8)) == (0.0, 4.0)


@pytest.mark.parametrize("method", METHODS)
def test_infinities_and_nans_are_ignored(method: str) -> None:
    real = distribution("normal")
    dirty = np.concatenate([real, np.asarray([np.inf, -np.inf, np.nan], np.float32)])
    assert range_by(method, dirty, Encoding(DType.U8)) == range_by(method, real, Encoding(DType.U8))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("constant", [3.7, -0.02, 1e34, 1e-40])
def test_constants_keep_their_value(method: str, constant: float) -> None:
    real = np.full(100, constant, np.float32)
    for encoding in ENCODINGS:
        low, high = range_by(method, real, encoding)
        back = fake_quantize(real, params_from_range(low, high, encoding))
        np.testing.assert_allclose(back, real, rtol=1e-6, atol=2.0**-63)


@pytest.mark.parametrize("method", METHODS)
def test_zeros_and_subnormals_still_give_a_range(method: str) -> None:
    low, high = range_by(method, np.asarray([0.0, -0.0, 1e-45], np.float32), Encoding(DType.U8))
    assert (low, high) == (0.0, float(np.float32(1e-45)))


@pytest.mark.parametrize("method", METHODS)
def test_all_zero_gives_the_empty_range(method: str) -> None:
    assert range_by(method, np.zeros(9, np.float32), Encoding(DType.U8)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("method", "low", "high", "percent", "message"),
    [
        ("median", 0.0, 1.0, 99.0, "unknown range method 'median': expected one of minmax, percentile, mse, entropy"),
        ("mse", np.inf, -np.inf, 99.0, "finite"),
        ("mse", 2.0, 1.0, 99.0, "between"),
        ("percentile", 0.0, 1.0, 0.0, "percent must be above 0 and at most 100, not 0.0"),
        ("percentile", 0.0, 1.0, 100.1, "percent must be above 0 and at most 100, not 100.1"),
    ],
)
def test_bad_arguments_are_refused(method: str, low: float, high: float, percent: float, message: str) -> None:
    counts = Histogram.of(np.asarray([0.0, 1.0])).counts
    with pytest.raises(InputError, match=message):
        find_range(method, counts, low, high, Encoding(DType.U8), percent)


WEIGHT_LAYOUTS = [
    (Granularity.TENSOR, None, 0),
    (Granularity.AXIS, 0, 0),
    (Granularity.AXIS, -1, 0),
    (Granularity.BLOCK, 1, 8),
    (Granularity.BLOCK, 0, 5),
]


def random_weight(shape: tuple[int, ...] = (6, 18, 3)) -> Array:
    rng = np.random.default_rng(8)
    weight = rng.standard_t(3, size=shape) * np.exp(rng.normal(size=(shape[0], 1, 1)))
    weight[3] = 0.0
    return weight.astype(np.float32)


@pytest.mark.parametrize("method", ["minmax", "mse"])
@pytest.mark.parametrize("layout", WEIGHT_LAYOUTS, ids=str)
@pytest.mark.parametrize("encoding", [Encoding(DType.U4), Encoding(DType.S8, True), Encoding(DType.F8E4M3)], ids=str)
def test_weight_groups_are_independent(encoding: Encoding, layout: tuple, method: str) -> None:
    """Each scale of the weight equals the scale chosen for its group alone."""
    granularity, axis, size = layout
    if granularity is Granularity.BLOCK and encoding.dtype is DType.S8:
        encoding = Encoding(DType.S8)  # symmetric blocks use the lowest integer, which one scale per tensor does not
    weight = random_weight()
    whole = weight_params(weight, Encoding(encoding.dtype, encoding.symmetric, granularity, size), axis, method)
    if axis is None:
        groups = {(): weight}
    elif granularity is Granularity.AXIS:
        groups = {(index,): np.take(weight, index, axis) for index in range(weight.shape[axis])}
    else:
        groups = {}
        for index in np.ndindex(*whole.scale.shape):
            block = [slice(at, at + 1) for at in index]
            block[axis] = slice(index[axis] * size, index[axis] * size + size)
            groups[index] = weight[tuple(block)]
    assert len(groups) == whole.scale.size
    for index, group in groups.items():
        alone = weight_params(group, encoding, None, method)
        assert whole.scale[index] == alone.scale
        assert whole.zero_point[index] == alone.zero_point


@pytest.mark.parametrize("layout", WEIGHT_LAYOUTS, ids=str)
@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_mse_weights_have_no_larger_error_than_minmax(encoding: Encoding, layout: tuple) -> None:
    granularity, axis, size = layout
    weight = random_weight()
    encoding = Encoding(encoding.dtype, encoding.symmetric, granularity, size)
    errors = {}
    for method in ("minmax", "mse"):
        back = fake_quantize(weight, weight_params(weight, encoding, axis, method))
        errors[method] = float(np.sum((back.astype(np.float64) - weight) ** 2))
    assert errors["mse"] <= errors["minmax"] * (1 + 1e-6)
    if encoding.dtype in (DType.S4, DType.U4) and granularity is not Granularity.BLOCK:
        assert errors["mse"] < 0.98 * errors["minmax"]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_mse_weights_are_close_to_the_best_of_many_ranges(encoding: Encoding) -> None:
    weight = np.random.default_rng(2).uniform(-1, 1, 2000).astype(np.float32)
    weight[0] = 3.0  # an outlier on one side: an asymmetric range shrinks only on that side
    factors = np.exp2(-np.linspace(0, 2, 15))
    pairs = [(f, f) for f in factors] if encoding.symmetric else [(f, g) for f in factors for g in factors]
    best = min(measured_error(weight, (weight.min() * f, weight.max() * g), encoding) for f, g in pairs)
    back = fake_quantize(weight, weight_params(weight, encoding, None, "mse")).astype(np.float64)
    assert float(np.mean((back - weight) ** 2)) <= best * 1.05


def test_long_rows_and_large_weights_are_summed_in_chunks() -> None:
    weight = np.random.default_rng(1).normal(size=(2, 200_000)).astype(np.float32) * np.float32(1e34)
    weight[1, 150_000:] = 0.0  # judged by the last chunk alone, nothing would be clipped
    encoding = Encoding(DType.S4, True)
    narrow, whole = weight_params(weight, encoding, None, "mse"), weight_params(weight, encoding)
    assert narrow.scale < 0.7 * whole.scale
    narrow_error, whole_error = (np.square((fake_quantize(weight, q) - weight) / 1e34).mean() for q in (narrow, whole))
    assert narrow_error < 0.4 * whole_error


@pytest.mark.parametrize(
    ("weight", "encoding", "method", "message"),
    [
        (np.ones((2, 2)), Encoding(DType.S8), "entropy", "minmax or mse"),
        (np.ones((2, 2)), Encoding(DType.S8), "best", "best"),
        (np.ones((0, 2)), Encoding(DType.S8), "minmax", "no values"),
        (np.full((2, 2), np.nan), Encoding(DType.S8), "mse", "NaN"),
        (np.full((2, 2), np.inf), Encoding(DType.S8), "minmax", "infinite"),
    ],
)
def test_bad_weights_are_refused(weight: Array, encoding: Encoding, method: str, message: str) -> None:
    axis = None if encoding.granularity is Granularity.TENSOR else 1
    with pytest.raises(InputError, match=message):
        weight_params(weight, encoding, axis, method)


def test_the_range_of_a_float8_weight_is_widened_and_never_clipped() -> None:
    weight = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    encoding = Encoding(DType.F8E4M3, granularity=Granularity.AXIS)
    widened = weight_params(weight, encoding, 0)
    largest = np.abs(weight).max(axis=1)
    minmax = params_from_range(-largest, largest, encoding, 0)
    assert ((widened.scale >= minmax.scale) & (widened.scale < 2 * minmax.scale)).all()
    errors = [((fake_quantize(weight, qparams) - weight) ** 2).sum() for qparams in (widened, minmax)]
    assert errors[0] < 0.9 * errors[1]
