"""Expanded blocks (LPBQ), compared with vectors of aimet-onnx 2.42.0 (``data/lpbq_vectors.json``, field producer)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import dovetail
from dovetail.encoding import Array, DType, Encoding, Granularity, QParams, expanded_qparams
from dovetail.errors import InputError
from dovetail.numerics.affine import dequantize, fake_quantize, quantize
from dovetail.numerics.lpbq import as_expanded, lpbq_scales
from dovetail.numerics.ranges import weight_params

VECTORS = json.loads((Path(__file__).parent / "data/lpbq_vectors.json").read_text())
EXPANDED = Granularity.EXPANDED_BLOCK


def by_name(vectors: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(vector, id=vector["name"]) for vector in vectors]


def test_there_are_vectors() -> None:
    assert VECTORS["producer"].startswith("aimet-onnx")
    assert [len(VECTORS[key]) for key in ("scale_vectors", "weight_vectors")] == [3, 3]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("vector", by_name(VECTORS["scale_vectors"]))
def test_scales_are_those_of_the_vectors(vector: dict[str, Any], dtype: type) -> None:
    scales = np.asarray(vector["block_scales"], dtype)
    channel, integers = dovetail.lpbq_scales(scales, block_axis=vector["block_axis"], scale_bits=vector["scale_bits"])
    assert integers.tolist() == vector["per_block_int_scale"]
    assert channel.dtype == dtype
    np.testing.assert_array_equal(channel, np.asarray(vector["per_channel_float_scale"], dtype))
    effective = np.expand_dims(channel, vector["block_axis"]) * integers
    np.testing.assert_allclose(effective, vector["effective_scale"], rtol=1e-7)


@pytest.mark.parametrize("vector", by_name(VECTORS["weight_vectors"]))
@pytest.mark.parametrize("transposed", [False, True])
def test_weights_are_quantized_as_in_the_vectors(vector: dict[str, Any], transposed: bool) -> None:
    weight, axis = np.asarray(vector["weight"], np.float32), vector["block_axis"]
    expected, effective = np.asarray(vector["dequantized"]), np.asarray(vector["effective_scales"])
    encoding_1_0_0 = vector["encoding_1_0_0"]
    integers = np.asarray(encoding_1_0_0["per_block_int_scale"]).reshape(effective.shape)
    if transposed:
        weight, expected, effective, integers, axis = weight.T, expected.T, effective.T, integers.T, 0
    encoding = Encoding(DType.S4, True, EXPANDED, vector["block_size"], 4 + vector["scale_bits"])
    params = weight_params(weight, encoding, axis)
    assert params.int_scale is not None
    assert params.channel_scale is not None
    np.testing.assert_array_equal(params.int_scale, integers)
    np.testing.assert_allclose(params.channel_scale.ravel(), encoding_1_0_0["scale"], rtol=1e-6)
    np.testing.assert_allclose(params.scale, effective, rtol=1e-6)
    np.testing.assert_allclose(fake_quantize(weight, params), expected, rtol=1e-6, atol=1e-9)


def test_ties_go_to_even_and_the_largest_block_has_the_largest_integer() -> None:
    scales = np.asarray([16, 0.5, 1.5, 2.5, 3.5, 4.5, 14.5, 15.5], np.float32)
    channel, integers = lpbq_scales(scales, block_axis=0)
    assert float(channel) == 1.0
    assert integers.tolist() == [16, 1, 2, 2, 4, 4, 14, 16]


def test_scales_of_zero_are_defined() -> None:
    channel, integers = lpbq_scales(np.asarray([[0.0, 0.0], [1.0, 0.0]], np.float32), block_axis=1)
    assert integers.tolist() == [[16, 16], [16, 1]]
    assert channel.tolist() == [2.0**-27, 0.0625]


def test_a_zero_block_does_not_change_the_scale_of_its_channel() -> None:
    weight = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    weight[:16] = 0
    params = weight_params(weight, Encoding(DType.S4, True, EXPANDED, 16), 0)
    assert params.int_scale is not None
    assert (params.int_scale[0] == 1).all()
    assert (params.int_scale[1:].max(axis=0) == 16).all()
    assert float(params.scale.max()) < 1.0


@given(
    arrays(np.float32, st.tuples(*[st.integers(1, 5)] * 3), elements=st.floats(0, 2.0**100, width=32)),
    st.integers(-3, 2),
    st.integers(1, 15),
)
def test_integers_are_in_range_in_a_type_that_holds_them(scales: Array, axis: int, bits: int) -> None:
    channel, integers = lpbq_scales(scales, block_axis=axis, scale_bits=bits)
    assert integers.dtype == (np.uint8 if bits < 8 else np.uint16)
    assert int(integers.min()) >= 1
    assert (integers.max(axis=axis) == 2**bits).all()
    steps = np.expand_dims(channel, axis % 3)
    error = np.abs(integers.astype(np.float64) * steps - scales)
    assert (error <= np.maximum(steps, 2.0**-23) * 1.001).all()  # half a step, or a whole one below the smallest


@pytest.mark.parametrize(
    ("scales", "arguments", "message"),
    [
        (np.ones((2, 2)), {"block_axis": 2}, "axis 2 is out of range"),
        (np.ones((2, 2)), {"block_axis": 0, "scale_bits": 0}, "scale_bits"),
        (np.ones((0, 2)), {"block_axis": 0}, "no values"),
        (np.ones(()), {"block_axis": 0}, "no values"),
        (np.asarray([1.0, -1.0]), {"block_axis": 0}, r"block_scales\[1\] is -1: every block scale must be finite"),
        (np.asarray([[1.0, 2.0], [1.0, np.nan]]), {"block_axis": 0}, r"block_scales\[1, 1\] is nan"),
    ],
)
def test_bad_scales_are_refused(scales: Array, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        lpbq_scales(scales, **arguments)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_quantizing_stays_on_the_grid_of_eight_bits(axis: int) -> None:
    """Quantized value x int_scale is an 8-bit integer with one scale per channel: how the hardware runs it."""
    weight = np.random.default_rng(1).standard_t(3, (64, 32)).astype(np.float32)
    params = weight_params(weight, Encoding(DType.S4, True, EXPANDED, 16), axis)
    stored = quantize(weight, params)
    assert params.int_scale is not None
    assert params.channel_scale is not None
    expanded = stored.astype(np.int32) * np.repeat(params.int_scale.astype(np.int32), 16, axis)
    assert int(expanded.min()) >= -128
    assert int(expanded.max()) <= 127
    np.testing.assert_allclose(expanded * params.channel_scale, dequantize(stored, params), rtol=1e-6)


def test_plain_blocks_become_the_expanded_blocks_closest_to_them() -> None:
    weight = np.random.default_rng(2).normal(size=(64, 8)).astype(np.float32)
    blocks = weight_params(weight, Encoding(DType.S4, True, Granularity.BLOCK, 16), 0)
    assert as_expanded(blocks) == weight_params(weight, Encoding(DType.S4, True, EXPANDED, 16), 0)
    with pytest.raises(InputError, match="symmetric"):
        as_expanded(weight_params(weight, Encoding(DType.S4, False, Granularity.BLOCK, 16), 0))


def test_inconsistent_levels_are_refused() -> None:
    encoding = Encoding(DType.S4, True, EXPANDED, 2)
    channel, integers = np.ones((1, 3)), np.full((2, 3), 16)
    params = expanded_qparams(encoding, channel, integers, 0)
    assert params.encoding.expanded_bits == 8
    with pytest.raises(ValueError, match="require an int_scale"):
        QParams(encoding, params.scale, params.zero_point, 0)
    with pytest.raises(ValueError, match="must be int_scale"):
        QParams(encoding, params.scale * 2, params.zero_point, 0, params.int_scale, params.channel_scale)
    with pytest.raises(ValueError, match="from 1 to 16"):
        expanded_qparams(encoding, channel, integers + 1, 0)
    with pytest.raises(ValueError, match="symmetric"):
        Encoding(DType.S4, False, EXPANDED, 2)
    with pytest.raises(ValueError, match="requires a block size"):
        QParams(Encoding(DType.S4, True, Granularity.BLOCK), np.ones((2, 2)), np.zeros((2, 2)), 0)
