"""Conversion of float16 graphs to float32: constants, scales and Casts."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.passes.as_float16 import as_float16
from dovetail.passes.as_float32 import as_float32
from tests.equality import assert_equal, check_valid, model_from, normal, ops, run

QDQ = """g (float[4,8] x) => (float[4,6] y, float[4,8] t)
{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) wd = DequantizeLinear<axis = 1>(w, ws)
  y = MatMul(d, wd) t = Relu(x) }"""


def constants() -> dict[str, np.ndarray]:
    weight = np.random.default_rng(0).integers(-127, 128, (8, 6)).astype(np.int8)
    return {"s": np.float32(0.03125), "z": np.int8(0), "ws": np.full(6, 0.0078125, np.float32), "w": weight}


def test_conversion_to_float16_and_back_gives_the_same_graph() -> None:
    original = model_from(QDQ, **constants())
    model = original.clone()
    model.graph.meta.clear()
    as_float16(model)
    model.graph.sort()
    assert "Cast" in ops(model)
    as_float32(model)
    check_valid(model)
    assert ops(model) == ops(original)
    assert_equal(original, model)  # scales that float16 holds exactly are restored exactly


def test_float16_model_keeps_its_values() -> None:
    text = "g (float16[4,8] x) => (float16[4,6] y) { m = MatMul(x, w) y = Add(m, b) }"
    original = model_from(text, w=normal(8, 6, dtype=np.float16), b=normal(6, dtype=np.float16))
    model = original.clone()
    record = as_float32(model)
    check_valid(model)
    assert {v.dtype for v in (*model.graph.inputs, *model.graph.outputs)} == {ir.DataType.FLOAT}
    assert {site.where for site in record.changed} >= {"x", "w", "b", "m", "y"}
    x = normal(4, 8, dtype=np.float16)
    (half,), (full,) = run(original, {"x": x}).values(), run(model, {"x": x.astype(np.float32)}).values()
    np.testing.assert_allclose(half.astype(np.float32), full, atol=2e-2)


def test_float32_and_integers_are_not_changed() -> None:
    original = model_from("g (int64[4] i) => (float[4] y) { f = Cast<to = 1>(i) y = Sqrt(f) }")
    model = original.clone()
    assert as_float32(model).changed == ()
    assert ops(model) == ["Cast", "Sqrt"]
