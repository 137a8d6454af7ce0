"""Scales and zero points from ranges, for every integer dtype and float8."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.encoding import DType, Encoding, Granularity
from dovetail.errors import InputError
from dovetail.numerics.affine import dequantize, fake_quantize, quantize
from dovetail.numerics.grid import SCALE_OF_ZEROS, SMALLEST_SCALE
from dovetail.numerics.ranges import params_from_range

ENCODINGS = [
    *(
        Encoding(dtype, symmetric)
        for dtype in (DType.U4, DType.S4, DType.U8, DType.S8, DType.U16, DType.S16)
        for symmetric in (False, True)
    ),
    Encoding(DType.S32, True),
    Encoding(DType.F8E4M3),
]
INTEGERS = [encoding for encoding in ENCODINGS if encoding.dtype.is_integer and encoding.dtype is not DType.S32]
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
moderate = st.floats(-(2.0**122), 2.0**122, width=32)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
@settings(max_examples=20, deadline=None)
@given(st.tuples(floats, floats).map(sorted))
@example([0.0, 0.0])
@example([1e-45, 1e-45])
@example([-3.4028235e38, 3.4028235e38])
@example([-1e34, 1e34])
def test_a_scale_is_always_usable_and_zero_always_exact(encoding: Encoding, ends: list[float]) -> None:
    qparams = params_from_range(*ends, encoding)
    assert SMALLEST_SCALE <= qparams.scale < np.inf
    bias_scale = qparams.scale * qparams.scale.dtype.type(SMALLEST_SCALE)
    assert np.isfinite(bias_scale)
    assert bias_scale >= np.finfo(np.float32).tiny
    zero = fake_quantize(np.zeros(1, np.float32), qparams)
    assert zero.tobytes() == np.zeros(1, np.float32).tobytes()
    assert np.all(np.isfinite(fake_quantize(np.asarray(ends, np.float32), qparams)))


@pytest.mark.parametrize("encoding", INTEGERS, ids=str)
@settings(max_examples=20, deadline=None)
@given(st.tuples(moderate, moderate).map(sorted), st.floats(0, 1))
@example([-1e34, 1e34], 0.3)
@example([0.0, 1e-40], 1.0)
@example([5.0, 5.0], 0.0)
def test_inside_the_range_the_error_is_half_a_step(encoding: Encoding, ends: list[float], at: float) -> None:
    qparams = params_from_range(*ends, encoding)
    low, high = min(ends[0], 0.0), max(ends[1], 0.0)
    real = np.asarray([*ends, low + at * (high - low)], np.float32)
    error = np.abs(fake_quantize(real, qparams).astype(np.float64) - real)
    # The float32 quotient and product are each off by 2**-24 of the value, which is at most 2**bits steps.
    rounding = 2.0**-22 * np.abs(real.astype(np.float64))
    assert np.all(error <= float(qparams.scale) / 2 + rounding)


@pytest.mark.parametrize("encoding", INTEGERS, ids=str)
@settings(max_examples=20, deadline=None)
@given(st.tuples(moderate, moderate).map(sorted), st.lists(floats, min_size=2, max_size=10))
def test_quantizing_keeps_the_order(encoding: Encoding, ends: list[float], values: list[float]) -> None:
    quantized = quantize(np.sort(np.asarray(values, np.float32)), params_from_range(*ends, encoding))
    assert np.all(np.diff(quantized.astype(np.int64)) >= 0)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
@settings(max_examples=20, deadline=None)
@given(st.floats(2.0**-40, 2.0**122, width=32), st.booleans())
def test_a_constant_is_represented(encoding: Encoding, constant: float, negative: bool) -> None:
    value = np.float32(-constant if negative else constant)
    dequantized = fake_quantize(value, params_from_range(float(value), float(value), encoding))
    # A symmetric unsigned grid also represents the constant: as its highest step, or as the negative of that.
    np.testing.assert_allclose(dequantized, value, rtol=2.0**-22)


@pytest.mark.parametrize(
    ("encoding", "low", "high", "scale", "zero_point"),
    [
        (Encoding(DType.U8), 0.0, 255.0, 1.0, 0),
        (Encoding(DType.U8), -1.0, 254.0, 1.0, 1),
        (Encoding(DType.U8), -255.0, 0.0, 1.0, 255),
        (Encoding(DType.U8), 3.0, 255.0, 1.0, 0),
        (Encoding(DType.U8), -9.0, -3.0, 9 / 255, 255),
        (Encoding(DType.S8), -128.0, 127.0, 1.0, 0),
        (Encoding(DType.S8), 0.0, 255.0, 1.0, -128),
        (Encoding(DType.U8), -0.5, 254.5, 1.0, 0),
        (Encoding(DType.U8), -1.5, 253.5, 1.0, 2),
        (Encoding(DType.S8, True), -127.0, 3.0, 1.0, 0),
        (Encoding(DType.S4, True), -1.0, 14.0, 2.0, 0),
        (Encoding(DType.U8, True), -127.0, 3.0, 1.0, 128),
        (Encoding(DType.U16), 0.0, 65535.0, 1.0, 0),
        (Encoding(DType.S16, True), 0.0, 32767.0, 1.0, 0),
        (Encoding(DType.F8E4M3), -896.0, 3.0, 2.0, 0),
        (Encoding(DType.U8), 0.0, 0.0, SCALE_OF_ZEROS, 0),
        (Encoding(DType.S8), 0.0, 0.0, SCALE_OF_ZEROS, -128),
        (Encoding(DType.S8, True), 0.0, 1e-30, SMALLEST_SCALE, 0),
    ],
    ids=str,
)
def test_known_qparams(encoding: Encoding, low: float, high: float, scale: float, zero_point: int) -> None:
    qparams = params_from_range(low, high, encoding)
    assert qparams.scale == np.float32(scale)
    assert qparams.zero_point == zero_point


def test_a_symmetric_weight_never_uses_the_extra_negative_step() -> None:
    weight = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    for dtype in (DType.S4, DType.S8, DType.S16):
        qparams = params_from_range(-float(np.abs(weight).max()), 0.0, Encoding(dtype, True))
        assert int(quantize(weight, qparams).astype(np.int32).min()) >= dtype.grid.low + 1


def test_channels_are_independent() -> None:
    encoding = Encoding(DType.U8, granularity=Granularity.AXIS)
    low, high = np.asarray([-1.0, 0.0, 2.0, 0.0]), np.asarray([1.0, 0.0, 3.0, 1e-42])
    together = params_from_range(low, high, encoding, axis=1)
    assert together.axis == 1
    for index in range(4):
        alone = params_from_range(low[index], high[index], Encoding(DType.U8))
        assert together.scale[index] == alone.scale
        assert together.zero_point[index] == alone.zero_point


@pytest.mark.parametrize(
    ("low", "high", "encoding", "message"),
    [
        (1.0, -1.0, Encoding(DType.S8), "above"),
        (0.0, np.inf, Encoding(DType.S8), "infinite"),
        (np.nan, 1.0, Encoding(DType.F8E4M3), "NaN"),
        (np.zeros(2), np.ones(3), Encoding(DType.S8), "shape"),
        (0.0, 1.0, Encoding(DType.S32), "int32"),
        (0.0, 1.0, Encoding(DType.F16), "float16"),
    ],
)
def test_ranges_without_a_scale_are_refused(low, high, encoding: Encoding, message: str) -> None:
    with pytest.raises(InputError, match=message):
        params_from_range(low, high, encoding)


def test_float8_reaches_its_highest_value() -> None:
    qparams = params_from_range(-3.0, 7.0, Encoding(DType.F8E4M3))
    quantized = quantize(np.asarray([7.0, -7.0, 100.0], np.float32), qparams)
    assert quantized.astype(np.float32).tolist() == [448.0, -448.0, 448.0]
    np.testing.assert_allclose(dequantize(quantized, qparams), [7.0, -7.0, 7.0], rtol=1e-6)
