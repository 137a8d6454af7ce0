"""Bias scales, and the channels whose bias overflows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.encoding import DType, Granularity
from dovetail.errors import InputError
from dovetail.numerics.affine import fake_quantize
from dovetail.numerics.bias import BIAS_LIMIT, bias_overflow, bias_params

scales = st.floats(2.0**-30, 2.0**20, width=32)


@settings(deadline=None)
@given(scales, st.lists(scales, min_size=1, max_size=6), st.data())
def test_a_bias_that_fits_is_within_half_a_step_and_an_overflow_is_reported(input_scale, weight_scales, data) -> None:
    weight_scale = np.asarray(weight_scales, np.float32)
    qparams = bias_params(input_scale, weight_scale)
    assert qparams.dtype is DType.S32
    assert qparams.encoding.granularity is Granularity.AXIS
    np.testing.assert_array_equal(qparams.scale, np.float32(input_scale) * weight_scale)
    steps = np.asarray(
        data.draw(st.lists(st.floats(-4e9, 4e9), min_size=len(weight_scales), max_size=len(weight_scales)))
    )
    bias = (steps * qparams.scale).astype(np.float32)
    real_steps = np.abs(bias.astype(np.float64)) / qparams.scale.astype(np.float64)
    overflow = bias_overflow(bias, qparams)
    overflowing = set() if overflow is None else set(overflow.channels)
    assert overflowing == {i for i, n in enumerate(real_steps) if n > BIAS_LIMIT}
    error = np.abs(fake_quantize(bias, qparams).astype(np.float64) - bias)
    for channel in set(range(len(weight_scales))) - overflowing:
        # Dequantizing converts the integer to float32, which rounds.
        assert error[channel] <= qparams.scale[channel] / 2 + 2.0**-22 * abs(float(bias[channel]))


def test_enlarging_the_weight_scale_by_growth_makes_the_bias_fit() -> None:
    weight_scale = np.asarray([0.01, 1e-12, 1e-15], np.float32)
    bias = np.asarray([1.0, -2.0, 3.0], np.float32)
    overflow = bias_overflow(bias, bias_params(0.02, weight_scale))
    assert overflow is not None
    assert overflow.channels == (1, 2)
    assert overflow.steps == pytest.approx((2.0 / 2e-14, 3.0 / 2e-17), rel=1e-5)
    enlarged = weight_scale.copy()
    enlarged[list(overflow.channels)] *= np.asarray(overflow.growth) * (1 + 1e-6)
    assert bias_overflow(bias, bias_params(0.02, enlarged)) is None


def test_a_per_tensor_weight_scale_gives_a_per_tensor_bias_scale() -> None:
    qparams = bias_params(np.float32(0.5), np.float32(0.25))
    assert qparams.axis is None
    assert qparams.scale == 0.125
    overflow = bias_overflow(np.asarray([1.0, 1e9], np.float32), qparams)
    assert overflow is not None
    assert overflow.channels == (1,)


@pytest.mark.parametrize(
    ("input_scale", "weight_scale"),
    [(1e-30, [1e-30]), (1e-20, [1e-19]), (1e30, [1e30]), ([0.1, 0.2], [0.1, 0.2]), (0.1, [[0.1]])],
)
def test_scales_without_a_usable_product_are_refused(input_scale, weight_scale) -> None:
    with pytest.raises(InputError):
        bias_params(np.asarray(input_scale), np.asarray(weight_scale))


@pytest.mark.parametrize("bias", [[[1.0]], [1.0, np.nan], [np.inf, 1.0], [1.0, 2.0, 3.0]])
def test_biases_of_another_shape_or_not_finite_are_refused(bias) -> None:
    with pytest.raises(InputError):
        bias_overflow(np.asarray(bias), bias_params(1.0, np.asarray([1.0, 1.0])))
