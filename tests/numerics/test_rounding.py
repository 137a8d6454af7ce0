"""Rounding by the error of a layer's output, against brute force, direct sums and another implementation."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.encoding import Array, DType, Encoding, Granularity, QParams, expanded_qparams
from dovetail.numerics import rounding
from dovetail.numerics.affine import dequantize, fake_quantize, quantize
from dovetail.numerics.layouts import ConvLayout, Layout, LinearLayout, add_moments, moments_shape
from dovetail.numerics.lpbq import channel_scales, lpbq_scales, raise_channels
from dovetail.numerics.ranges import weight_params
from dovetail.numerics.rounding import conditional_moments, output_error, search_scales, second_order

PER_CHANNEL = [
    Encoding(DType.S8, True, Granularity.AXIS),
    Encoding(DType.S4, True, Granularity.AXIS),
    Encoding(DType.U4, False, Granularity.AXIS),
    Encoding(DType.F8E4M3, granularity=Granularity.AXIS),
]
ENCODINGS = [
    *((encoding, 0) for encoding in PER_CHANNEL),
    (Encoding(DType.S8, True), None),
    (Encoding(DType.U8), None),
    (Encoding(DType.S4, True, Granularity.BLOCK, 4), 1),
    (Encoding(DType.S4, True, Granularity.EXPANDED_BLOCK, 4), 1),
    (Encoding(DType.S8, True, Granularity.AXIS), 1),
]
EXPANDED = Encoding(DType.S4, True, Granularity.EXPANDED_BLOCK, 4, expanded_bits=8)
LINEAR = LinearLayout()
GROUPED = ConvLayout((6, 2, 2, 3), (1, 1), (1, 1), (0, 1), (0, 1), groups=3)


def as_they_are(params: QParams) -> QParams:
    return params


def activations(rows: int, columns: int, seed: int) -> Array:
    """Correlated inputs with a mean and with outliers, as a layer has them."""
    random = np.random.default_rng(seed)
    mixed = random.standard_normal((rows, columns)) @ random.standard_normal((columns, columns))
    return ((mixed + random.standard_normal(columns)) * np.exp(random.standard_normal(columns))).astype(np.float32)


def moments_of(shape: tuple[int, ...], layout: Layout, *inputs: Array) -> Array:
    moments = np.zeros(moments_shape(shape, layout))
    for array in inputs:
        add_moments(moments, layout, array)
    return moments


def weight_of(shape: tuple[int, ...], seed: int) -> Array:
    return (0.1 * np.random.default_rng([seed, 1]).standard_normal(shape)).astype(np.float32)


def test_the_error_is_that_of_the_outputs() -> None:
    x, error = activations(50, 8, 0), weight_of((5, 8), 0)
    direct = float(((x.astype(np.float64) @ error.T) ** 2).sum())
    assert output_error(error, LINEAR, moments_of(error.shape, LINEAR, x[:20], x[20:])) == pytest.approx(direct)


@pytest.mark.parametrize("encoding", PER_CHANNEL, ids=str)
def test_scales_equal_brute_force_over_the_candidates(encoding: Encoding) -> None:
    """Channel by channel, from the outputs themselves: the given scale, then the best factor, then finer ones."""
    x, weight = activations(40, 6, 1), weight_of((4, 6), 1)
    params = weight_params(weight, encoding, 0)
    found = search_scales(weight, params, LINEAR, moments_of(weight.shape, LINEAR, x), as_they_are)
    is_float8 = encoding.dtype is DType.F8E4M3
    for channel in range(len(weight)):
        exponent = 0.0
        for offsets in (rounding._FLOAT8,) if is_float8 else (rounding._COARSE, rounding._FINER):
            exponent = min([exponent, *(exponent + offsets)], key=lambda e: _direct(x, weight, params, channel, e))
        expected = params.scale[channel] * np.float32(2.0**exponent)
        assert found.scale[channel] == pytest.approx(expected, rel=1e-6)


def _direct(x: Array, weight: Array, params: QParams, channel: int, exponent: float) -> float:
    one = Encoding(params.dtype, params.encoding.symmetric)
    scale = params.scale[channel] * np.float32(2.0**exponent)
    error = weight[channel] - fake_quantize(weight[channel], QParams(one, scale, params.zero_point[channel]))
    return float(((x.astype(np.float64) @ error) ** 2).sum())


@pytest.mark.parametrize("seed", range(20))
def test_integers_are_between_brute_force_and_nearest(seed: int) -> None:
    """Brute force: every combination of the integers around the weights, for one output."""
    x, weight = activations(12, 4, seed), weight_of((1, 4), seed)
    params = weight_params(weight, Encoding(DType.S4, True))
    moments = moments_of(weight.shape, LINEAR, x)
    nearest, chosen = quantize(weight, params), second_order(weight, params, LINEAR, moments)
    around = [[int(n) + d for d in (-2, -1, 0, 1, 2) if -8 <= int(n) + d <= 7] for n in nearest[0]]
    errors = [_error(weight, np.array([combination]), params, moments) for combination in itertools.product(*around)]
    error = _error(weight, chosen.astype(np.int64), params, moments)
    assert min(errors) * (1 - 1e-6) <= error <= _error(weight, nearest.astype(np.int64), params, moments) * (1 + 1e-6)


def test_integers_are_close_to_brute_force_on_average() -> None:
    ratios = []
    for seed in range(30):
        x, weight = activations(12, 4, seed), weight_of((1, 4), seed)
        params = weight_params(weight, Encoding(DType.S4, True))
        moments = moments_of(weight.shape, LINEAR, x)
        around = [[int(n) + d for d in (-2, -1, 0, 1, 2) if -8 <= int(n) + d <= 7] for n in quantize(weight, params)[0]]
        best = min(_error(weight, np.array([c]), params, moments) for c in itertools.product(*around))
        found = _error(weight, second_order(weight, params, LINEAR, moments).astype(np.int64), params, moments)
        nearest = _error(weight, quantize(weight, params).astype(np.int64), params, moments)
        ratios.append(np.log([found / best, nearest / best]))
    of_found, of_nearest = np.exp(np.mean(ratios, axis=0))
    assert of_found < 1.15 < 1.4 < of_nearest


def _error(weight: Array, integers: Array, params: QParams, moments: Array) -> float:
    return output_error(weight - dequantize(integers.astype(params.dtype.numpy), params), LINEAR, moments)


@pytest.mark.parametrize(("encoding", "axis"), ENCODINGS, ids=str)
def test_integers_equal_the_formula_of_optimal_brain_surgeon(encoding: Encoding, axis: int | None) -> None:
    """Another implementation: the inverse of the moments of the inputs that are left, computed anew for each."""
    x, weight = activations(300, 8, 3), weight_of((3, 8), 3)
    params = weight_params(weight, encoding, axis)
    moments = moments_of(weight.shape, LINEAR, x)
    chosen = dequantize(second_order(weight, params, LINEAR, moments), params)
    damped = moments[0] + 0.01 * np.trace(moments[0]) / 8 * np.eye(8)
    real, left = weight.astype(np.float64).copy(), list(np.argsort(-np.diag(moments[0]), kind="stable"))
    result = np.zeros_like(real)
    while left:
        inverse, column = np.linalg.inv(damped[np.ix_(left, left)]), left[0]
        result[:, column] = fake_quantize(real.astype(np.float32), params)[:, column]
        error = (real[:, column] - result[:, column]) / inverse[0, 0]
        real[:, left] -= np.outer(error, inverse[0])
        left = left[1:]
    by_row = [output_error(weight[[i]] - result[[i]], LINEAR, moments) for i in range(3)]
    nearest = fake_quantize(weight, params)
    is_better = [by_row[i] < output_error(weight[[i]] - nearest[[i]], LINEAR, moments) for i in range(3)]
    assert any(is_better)
    np.testing.assert_array_equal(chosen, np.where(np.array(is_better)[:, None], result, nearest).astype(np.float32))


@given(st.integers(0, 10_000), st.sampled_from(ENCODINGS), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_no_method_is_worse_than_nearest(seed: int, encoding: tuple[Encoding, int | None], rows: int) -> None:
    x, weight = activations(rows, 8, seed), weight_of((3, 8), seed)
    params = weight_params(weight, *encoding)
    moments = moments_of(weight.shape, LINEAR, x)
    nearest = output_error(weight - fake_quantize(weight, params), LINEAR, moments)
    searched = search_scales(weight, params, LINEAR, moments, as_they_are)
    of_searched = output_error(weight - fake_quantize(weight, searched), LINEAR, moments)
    for grid in (params, searched):
        integers = second_order(weight, grid, LINEAR, moments)
        assert integers.dtype == params.dtype.numpy
        error = output_error(weight - dequantize(integers, grid), LINEAR, moments)
        assert error <= (nearest if grid is params else of_searched) * (1 + 1e-9)
    assert of_searched <= nearest


def test_blocks_that_are_correlated_are_searched_together() -> None:
    """Equal inputs: with blocks one after the other, the errors of one block cancel those of the other."""
    x = np.repeat(activations(60, 4, 5), 2, axis=1)[:, [0, 2, 4, 6, 1, 3, 5, 7]]
    weight = weight_of((6, 8), 5)
    encoding = Encoding(DType.S4, True, Granularity.BLOCK, 4)
    params = weight_params(weight, encoding, 1)
    moments = moments_of(weight.shape, LINEAR, x)
    apart = np.array(moments)
    apart[:, :4, 4:] = apart[:, 4:, :4] = 0
    errors = [
        output_error(weight - fake_quantize(weight, search_scales(weight, params, LINEAR, known, as_they_are)), LINEAR,
                     moments)
        for known in (moments, apart)
    ]  # fmt: skip
    assert errors[0] < errors[1]


def test_expanded_blocks_are_searched_and_can_be_computed_from_their_products() -> None:
    """HTP's provider gets int_scale * channel_scale, and computes both from that by the formula of ``lpbq_scales``."""
    x, weight = activations(60, 32, 5), weight_of((6, 32), 5)
    expanded = weight_params(weight, EXPANDED, 1, "mse")
    moments = moments_of(weight.shape, LINEAR, x)
    found = search_scales(weight, expanded, LINEAR, moments, as_they_are)
    before, after = (output_error(weight - fake_quantize(weight, p), LINEAR, moments) for p in (expanded, found))
    assert after < 0.8 * before
    assert found.encoding == EXPANDED
    channel, integers = lpbq_scales(found.scale, block_axis=1)
    np.testing.assert_array_equal(integers, found.int_scale)
    assert found.channel_scale is not None
    np.testing.assert_array_equal(channel, found.channel_scale[:, 0])
    assert (integers.max(axis=1) == 16).all()


def test_the_integers_of_expanded_blocks_are_close_to_the_best_ones() -> None:
    """Uncorrelated inputs, so that blocks do not depend on each other: against every integer of every block."""
    weight, variances = weight_of((5, 64), 7), np.linspace(1, 4, 64)
    encoding = replace(EXPANDED, block_size=16)
    expanded = weight_params(weight, encoding, 1, "minmax")
    found = search_scales(weight, expanded, LINEAR, np.diag(variances)[None], as_they_are)
    assert found.int_scale is not None
    assert found.channel_scale is not None

    def errors(integers: Array) -> Array:
        tried = expanded_qparams(encoding, found.channel_scale, integers, 1)
        return np.asarray(((weight - fake_quantize(weight, tried)) ** 2 * variances).reshape(5, 4, 16).sum(axis=2))

    every = np.min([errors(np.full(found.int_scale.shape, i, np.uint8)) for i in range(1, 17)], axis=0)
    assert errors(found.int_scale).sum() < 1.05 * every.sum()
    assert errors(expanded.int_scale).sum() > 1.1 * every.sum()


def test_scales_of_expanded_blocks_that_are_not_allowed_are_not_taken() -> None:
    x, weight = activations(40, 16, 1), weight_of((4, 16), 1)
    params = weight_params(weight, EXPANDED, 1, "minmax")
    moments = moments_of(weight.shape, LINEAR, x)
    least = channel_scales(params)
    free, bounded = (
        search_scales(weight, params, LINEAR, moments, allowed)
        for allowed in (as_they_are, lambda params: raise_channels(params, least))
    )
    assert (channel_scales(free) < least).any()
    assert (channel_scales(bounded) >= least).all()
    assert bounded is not params


def test_the_conditional_moments_are_what_inputs_rounded_later_do_not_predict() -> None:
    """Against least squares, for the order of descending moments, with the same damping."""
    x = activations(200, 6, 3).astype(np.float64)
    moments = (x.T @ x)[None]
    found = conditional_moments(moments)[0]
    damped = moments[0] + 0.01 * np.trace(moments[0]) / 6 * np.eye(6)
    order = np.argsort(-np.diag(moments[0]))
    for position, index in enumerate(order):
        later = order[position + 1 :]
        predicted = damped[index, later] @ np.linalg.solve(damped[np.ix_(later, later)], damped[later, index])
        np.testing.assert_allclose(found[index, index], damped[index, index] - predicted, rtol=1e-6)
    assert not (found - np.diag(np.diag(found))).any()


@pytest.mark.parametrize("encoding", [Encoding(DType.S4, True, Granularity.AXIS), EXPANDED])
def test_scales_for_second_order_rounding_are_searched_with_what_its_correction_leaves(encoding: Encoding) -> None:
    by_moments, by_conditional = [], []
    for seed in range(8):
        x, weight = activations(200, 32, seed), weight_of((16, 32), seed)
        params = weight_params(weight, encoding, 1 if encoding.is_blocked else 0, "minmax")
        moments = moments_of(weight.shape, LINEAR, x)
        for errors, known in ((by_moments, moments), (by_conditional, conditional_moments(moments))):
            searched = search_scales(weight, params, LINEAR, known, as_they_are)
            rounded = dequantize(second_order(weight, searched, LINEAR, moments), searched)
            errors.append(10 * np.log10(output_error(weight - rounded, LINEAR, moments)))
    assert np.mean(by_conditional) < np.mean(by_moments) - 0.2


def test_a_scale_that_is_not_allowed_is_not_taken() -> None:
    x, weight = activations(40, 6, 1), weight_of((4, 6), 1)
    params = weight_params(weight, Encoding(DType.S4, True, Granularity.AXIS), 0)
    moments = moments_of(weight.shape, LINEAR, x)
    least = params.scale * np.array([0.2, 0.9, 1, 1.5], np.float32)
    free, bounded = (
        search_scales(weight, params, LINEAR, moments, allowed)
        for allowed in (as_they_are, lambda tried: replace(tried, scale=np.maximum(tried.scale, least)))
    )
    assert (free.scale < least)[1:3].any()
    assert free.scale[0] == bounded.scale[0] != params.scale[0]
    assert (bounded.scale >= np.minimum(least, params.scale)).all()


@pytest.mark.parametrize("encoding", PER_CHANNEL, ids=str)
def test_groups_are_independent_layers(encoding: Encoding) -> None:
    """A convolution with groups rounds like a linear layer per group on its unfolded input."""
    x = np.random.default_rng(2).standard_normal((3, 6, 5, 6)).astype(np.float32)
    weight = weight_of(GROUPED.shape, 2)
    params = weight_params(weight, encoding, 0)
    moments = moments_of(weight.shape, GROUPED, x)
    together = second_order(weight, params, GROUPED, moments)
    for group in range(3):
        rows = slice(2 * group, 2 * group + 2)
        per_group = QParams(encoding, params.scale[rows], params.zero_point[rows], 0)
        alone = second_order(weight[rows].reshape(2, -1), per_group, LINEAR, moments[[group]])
        np.testing.assert_array_equal(together[rows].reshape(2, -1), alone)


def test_inputs_that_are_always_zero() -> None:
    """Their weights have no effect: they are rounded to nearest, and nothing is corrected by them."""
    x, weight = activations(60, 8, 4), weight_of((3, 8), 4)
    x[:, [1, 5]] = 0
    params = weight_params(weight, Encoding(DType.S4, True, Granularity.AXIS), 0)
    moments = moments_of(weight.shape, LINEAR, x)
    integers = second_order(weight, params, LINEAR, moments)
    np.testing.assert_array_equal(integers[:, [1, 5]], quantize(weight, params)[:, [1, 5]])
    assert (integers != quantize(weight, params)).any()
    nothing = np.zeros_like(moments)
    np.testing.assert_array_equal(second_order(weight, params, LINEAR, nothing), quantize(weight, params))
    assert search_scales(weight, params, LINEAR, nothing, as_they_are) is params


@pytest.mark.parametrize(("encoding", "axis"), ENCODINGS, ids=str)
def test_uncorrelated_inputs_are_rounded_to_nearest(encoding: Encoding, axis: int | None) -> None:
    """With a diagonal moment matrix no error can be corrected: nearest is the optimum, and the bytes are the same."""
    weight = weight_of((4, 8), 6)
    params = weight_params(weight, encoding, axis)
    integers = second_order(weight, params, LINEAR, np.diag(np.arange(1.0, 9))[None])
    assert integers.tobytes() == quantize(weight, params).tobytes()


def test_wide_layers_are_corrected_in_blocks_of_columns() -> None:
    """More columns than are corrected at once: the same as with one block."""
    x, weight = activations(600, 300, 7), weight_of((5, 300), 7)
    params = weight_params(weight, Encoding(DType.S4, True, Granularity.AXIS), 0)
    moments = moments_of(weight.shape, LINEAR, x)
    first, again = (second_order(weight, params, LINEAR, moments) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounding, "_LAZY", 300)
        whole = second_order(weight, params, LINEAR, moments)
    assert (first != whole).mean() < 0.05  # float32 sums in another order
    errors = [output_error(weight - dequantize(integers, params), LINEAR, moments) for integers in (first, whole)]
    assert errors[0] == pytest.approx(errors[1], rel=0.05)
    assert errors[0] < 0.5 * output_error(weight - fake_quantize(weight, params), LINEAR, moments)
