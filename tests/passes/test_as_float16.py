"""A graph in float16: numbers, ends, what must stay in float32, and scales that ONNX allows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.errors import InputError
from dovetail.passes.as_float16 import as_float16, survives
from tests.equality import changed_by, check_valid, model_from, normal, ops

# float16 keeps 11 bits.
FLOOR_DB = 55.0
MLP = """g (float[1,5,8] x) => (float[1,5,8] y, float[1,5,16] h)
{ m = MatMul(x, w) h = Add(m, b) r = Relu(h) y = MatMul(r, v) }"""
QDQ = """g (float[4,8] x) => (float[4,6] y)
{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
  wd = DequantizeLinear<axis = 1>(w, ws) y = MatMul(d, wd) }"""
MASKED = """g (float[1,2,4,4] x) => (float[1,2,4,4] y) { s = Add(x, mask) y = Softmax(s) }"""


def float32_inside(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph for v in node.outputs if v.dtype is ir.DataType.FLOAT]


def test_everything_inside_is_float16_and_both_ends_are_not() -> None:
    given = model_from(MLP, w=normal(8, 16), b=normal(16), v=normal(16, 8))
    model, record = changed_by(as_float16, given, FLOOR_DB)
    assert float32_inside(model) == ["Cast", "Cast"]  # the two outputs; one of them is also read inside
    assert ops(model).count("Cast") == 3
    assert record.declined == ()


def test_scales_become_float16_and_stay_legal() -> None:
    numbers = {"s": np.float32(0.03125), "z": np.int8(0), "ws": np.full(6, 0.0078125, np.float32)}
    weight = np.random.default_rng(0).integers(-127, 128, (8, 6)).astype(np.int8)
    # A value half way between two steps may be rounded the other way.
    model, record = changed_by(as_float16, model_from(QDQ, w=weight, **numbers), 35.0)
    assert record.declined == ()
    for node in model.graph:
        if node.op_type == "QuantizeLinear":
            assert [v.dtype for v in node.inputs if v is not None][:2] == [ir.DataType.FLOAT16] * 2


def test_a_scale_that_would_vanish_stays_in_float32_between_casts() -> None:
    numbers = {"s": np.float32(1e-9), "z": np.int8(0), "ws": np.full(6, 0.01, np.float32)}
    weight = np.random.default_rng(0).integers(-127, 128, (8, 6)).astype(np.int8)
    given = model_from(QDQ, w=weight, **numbers)
    model = given.clone()
    record = as_float16(model)
    check_valid(model)
    assert [site.where for site in record.declined] == ["q", "d"]
    assert "1e-09 is below the smallest normal float16" in record.declined[0].what
    quantize = next(node for node in model.graph if node.op_type == "QuantizeLinear")
    assert quantize.inputs[1] is not None
    assert quantize.inputs[1].dtype is ir.DataType.FLOAT


def test_a_scale_that_another_node_reads_is_copied() -> None:
    text = """g (float[4,8] x) => (float[4,8] y, float[4,8] t)
    { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) t = Mul(x, s) }"""
    given = model_from(text, s=np.float32(1e-6), z=np.int8(0))
    model = given.clone()
    record = as_float16(model)
    check_valid(model)
    assert {site.where for site in record.declined} == {"q", "y", "t"}
    given = model_from(text, s=np.float32(0.25), z=np.int8(0))
    changed_by(as_float16, given, FLOOR_DB)


def test_an_epsilon_keeps_its_operator_in_float32() -> None:
    text = "g (float[4,8] x) => (float[4,8] y) <float eps = {1e-12}> { a = Mul(x, x) b = Add(a, eps) y = Sqrt(b) }"
    model, record = changed_by(as_float16, model_from(text), FLOOR_DB)
    assert [site.where for site in record.declined] == ["b"]
    add = next(node for node in model.graph if node.op_type == "Add")
    assert all(v is not None and v.dtype is ir.DataType.FLOAT for v in (*add.inputs, *add.outputs))


def test_a_mask_is_brought_to_the_largest_float16() -> None:
    mask = np.where(np.tri(4, dtype=bool), 0, np.finfo(np.float32).min).astype(np.float32)
    model, _ = changed_by(as_float16, model_from(MASKED, mask=mask), FLOOR_DB)
    stored = next(v for v in model.graph.initializers.values()).const_value
    assert stored is not None
    assert float(stored.numpy().min()) == -65504.0


def test_integers_and_their_casts_are_left_alone() -> None:
    text = """g (int64[4] i) => (float[4] y, int64[4] j) <int64 one = {1}>
    { j = Add(i, one) f = Cast<to = 1>(j) y = Sqrt(f) }"""
    model, _ = changed_by(as_float16, model_from(text), FLOOR_DB)
    assert next(n for n in model.graph if n.op_type == "Cast").outputs[0].dtype is ir.DataType.FLOAT16


def test_an_old_opset_is_refused_where_there_are_scales() -> None:
    pair = "<float s = {0.5}, int8 z = {0}> { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    with pytest.raises(InputError, match="opset 17: float16 scales need opset 19"):
        as_float16(model_from(f"g (float[4] x) => (float[4] y) {pair}", opset=17))
    changed_by(as_float16, model_from("g (float[4] x) => (float[4] y) { y = Relu(x) }", opset=17), FLOOR_DB)


@pytest.mark.parametrize(("number", "why"), [(0.5, ""), (0.0, ""), (6e-8, "below"), (1e6, "above"), (6.2e-5, "")])
def test_what_float16_can_hold(number: float, why: str) -> None:
    assert why in survives(np.asarray(number, np.float32))
    assert bool(why) == bool(survives(np.asarray(number, np.float32)))


def test_a_tied_weight_is_converted_once_for_all_its_readers() -> None:
    text = "g (float[4,8] x) => (float[4,8] y, float[4,8] u) { y = MatMul(x, w) u = MatMul(y, w) }"
    model, _ = changed_by(as_float16, model_from(text, w=normal(8, 8) / 8), FLOOR_DB)
    products = [node for node in model.graph if node.op_type == "MatMul"]
    assert products[0].inputs[1] is products[1].inputs[1]
    assert len(model.graph.initializers) == 1


def test_a_tied_stored_weight_keeps_both_its_scales() -> None:
    """One reading fits into float16, the other stays in float32 between Casts; the integers are the same."""
    text = """g (float[4,8] x) => (float[4,6] y, float[4,6] u)
    { a = DequantizeLinear(w, s) b = DequantizeLinear(w, tiny) y = MatMul(x, a) u = MatMul(x, b) }"""
    weight = np.random.default_rng(0).integers(-127, 128, (8, 6)).astype(np.int8)
    given = model_from(text, w=weight, s=np.float32(0.03125), tiny=np.float32(2**-20))
    model, record = changed_by(as_float16, given, 35.0)
    assert [site.where for site in record.declined] == ["b"]
    reads = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    assert reads[0].inputs[0] is reads[1].inputs[0]


def test_casts_and_transposes_in_a_row_end_in_float16() -> None:
    text = """g (float[4,8] x, int64[8,4] i) => (float[8,4] y)
    { c = Cast<to = 1>(i) t = Transpose<perm = [1,0]>(x) h = Cast<to = 10>(t) f = Cast<to = 1>(h) y = Add(f, c) }"""
    model, _ = changed_by(as_float16, model_from(text), FLOOR_DB)
    add = next(node for node in model.graph if node.op_type == "Add")
    assert all(v is not None and v.dtype is ir.DataType.FLOAT16 for v in (*add.inputs, *add.outputs))
