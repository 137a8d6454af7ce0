"""Float16 files as float32 graphs: constants, scales and casts."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.passes.as_float16 import as_float16
from dovetail.passes.as_float32 import as_float32
from tests.equality import assert_equal, check_valid, model_from, normal, ops, run

QDQ = """g (float[4,8] x) => (float[4,6] y, float[4,8] t)
{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) wd = DequantizeLinear<axis = 1>(w, ws)
  y = MatMul(d, wd) t = Relu(x) }"""


def numbers() -> dict[str, np.ndarray]:
    weight = np.random.default_rng(0).integers(-127, 128, (8, 6)).astype(np.int8)
    return {"s": np.float32(0.03125), "z": np.int8(0), "ws": np.full(6, 0.0078125, np.float32), "w": weight}


def test_there_and_back_is_the_same_graph() -> None:
    given = model_from(QDQ, **numbers())
    model = given.clone()
    model.graph.meta.clear()
    as_float16(model)
    model.graph.sort()
    assert "Cast" in ops(model)
    as_float32(model)
    check_valid(model)
    assert ops(model) == ops(given)
    assert_equal(given, model)  # scales that float16 holds exactly come back exactly


def test_a_half_precision_file_keeps_its_numbers() -> None:
    text = "g (float16[4,8] x) => (float16[4,6] y) { m = MatMul(x, w) y = Add(m, b) }"
    given = model_from(text, w=normal(8, 6, dtype=np.float16), b=normal(6, dtype=np.float16))
    model = given.clone()
    record = as_float32(model)
    check_valid(model)
    assert {v.dtype for v in (*model.graph.inputs, *model.graph.outputs)} == {ir.DataType.FLOAT}
    assert {site.where for site in record.changed} >= {"x", "w", "b", "m", "y"}
    x = normal(4, 8, dtype=np.float16)
    (half,), (full,) = run(given, {"x": x}).values(), run(model, {"x": x.astype(np.float32)}).values()
    np.testing.assert_allclose(half.astype(np.float32), full, atol=2e-2)


def test_float32_and_integers_are_left_alone() -> None:
    given = model_from("g (int64[4] i) => (float[4] y) { f = Cast<to = 1>(i) y = Sqrt(f) }")
    model = given.clone()
    assert as_float32(model).changed == ()
    assert ops(model) == ["Cast", "Sqrt"]
