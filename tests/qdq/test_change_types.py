"""A QDQ model with only its types changed: ranges stay, rounding changes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.encoding import DType, Encoding, Granularity, QParams
from dovetail.numerics.affine import dequantize, fake_quantize, quantize
from dovetail.qdq.change_types import Types, change_types
from tests.equality import model_from, run

U8, S8 = Encoding(DType.U8), Encoding(DType.S8, symmetric=True)
ROWS = Encoding(DType.S8, symmetric=True, granularity=Granularity.AXIS)
RANDOM = np.random.default_rng(0)
STORED = RANDOM.integers(0, 256, (4, 4)).astype(np.uint8)
WEIGHT = QParams(U8, np.float32(0.01), np.int32(120))
REAL = dequantize(STORED, WEIGHT)
X = (3 * RANDOM.standard_normal((5, 4))).astype(np.float32)
GIVEN = QParams(U8, np.float32(0.02), np.int32(0))  # [0, 5.1]: a folded Relu


def given() -> ir.Model:
    text = """g (float[5,4] x) => (float[5,4] y)
    { wd = DequantizeLinear(w_quantized, ws, wz) h = MatMul(x, wd)
      q = QuantizeLinear(h, s, z) d = DequantizeLinear(q, s, z) y = Identity(d) }"""
    return model_from(text, w_quantized=STORED, ws=WEIGHT.scale, wz=np.uint8(120), s=GIVEN.scale, z=np.uint8(0))


def expected(weight: np.ndarray = REAL, storage: QParams | None = None, low: float = 0.0) -> np.ndarray:
    hidden = np.clip(X @ weight, low, 255 * GIVEN.scale)
    return hidden if storage is None else fake_quantize(hidden, storage)


def test_the_same_types_change_nothing() -> None:
    after = change_types(given(), Types({"h": GIVEN}, {}))
    assert np.array_equal(run(after, {"x": X})["y"], run(given(), {"x": X})["y"])


def test_a_removed_pair_still_clips() -> None:
    assert np.allclose(run(change_types(given(), Types({}, {})), {"x": X})["y"], expected(), atol=1e-5)


def test_a_symmetric_type_still_clips() -> None:
    storage = QParams(S8, np.float32(5.1 / 127), np.int32(0))
    output = run(change_types(given(), Types({"h": storage}, {})), {"x": X})["y"]
    assert output.min() == 0.0
    assert np.allclose(output, expected(storage=storage), atol=1e-5)


def test_a_float_tensor_that_the_target_quantizes() -> None:
    storage = QParams(S8, np.float32(0.05), np.int32(0))
    output = run(change_types(given(), Types({"h": GIVEN, "x": storage}, {})), {"x": X})["y"]
    hidden = np.clip(fake_quantize(X, storage) @ REAL, 0, 5.1)
    assert np.allclose(output, fake_quantize(hidden, GIVEN), atol=0.021)


@pytest.mark.parametrize("axis", [0, 1])
def test_weights_in_another_type_on_the_axis_where_they_fit(axis: int) -> None:
    """The scales were recorded for a transposed weight: the axis is found by its values."""
    scale = np.abs(REAL).max(axis=1 - axis) / 127
    params = QParams(ROWS, scale, np.zeros(4, np.int32), axis)
    moved = QParams(ROWS, scale, np.zeros(4, np.int32), 1 - axis)
    weight = dequantize(quantize(REAL, params), params)
    for recorded in (params, moved):
        output = run(change_types(given(), Types({}, {"w": recorded})), {"x": X})["y"]
        assert np.allclose(output, expected(weight), atol=1e-5)


def test_scales_of_a_slice_are_not_used_for_the_whole_weight() -> None:
    params = QParams(S8, np.float32(0.001), np.int32(0))
    output = run(change_types(given(), Types({}, {"w": params})), {"x": X})["y"]
    assert np.allclose(output, expected(), atol=1e-5)


def test_the_model_is_not_changed() -> None:
    model = given()
    before = ir.to_proto(model).SerializeToString()
    change_types(model, Types({}, {}))
    assert ir.to_proto(model).SerializeToString() == before
