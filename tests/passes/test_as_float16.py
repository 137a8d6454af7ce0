"""Conversion to float16: values, inputs and outputs, nodes that must stay in float32, and scales that ONNX allows."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.errors import InputError
from dovetail.passes.as_float16 import as_float16, why_not_float16
from tests.equality import changed_by, check_valid, model_from, normal, ops, random_inputs, run, sqnr_db

# float16 keeps 11 bits.
FLOOR_DB = 55.0
MLP = """g (float[1,5,8] x) => (float[1,5,8] y, float[1,5,16] h)
{ m = MatMul(x, w) h = Add(m, b) r = Relu(h) y = MatMul(r, v) }"""
QDQ = """g (float[4,8] x) => (float[4,6] y)
{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
  wd = DequantizeLinear<axis = 1>(w, ws) y = MatMul(d, wd) }"""


def float32_inside(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph for v in node.outputs if v.dtype is ir.DataType.FLOAT]


def test_everything_inside_is_float16_but_inputs_and_outputs_are_not() -> None:
    original = model_from(MLP, w=normal(8, 16), b=normal(16), v=normal(16, 8))
    model, record = changed_by(as_float16, original, FLOOR_DB)
    assert float32_inside(model) == ["Cast", "Cast"]  # the two outputs; one of them is also used inside
    assert ops(model).count("Cast") == 3
    assert record.declined == ()


def test_scales_become_float16_and_stay_valid() -> None:
    qparams = {"s": np.float32(0.03125), "z": np.int8(0), "ws": np.full(6, 0.0078125, np.float32)}
    weight = np.random.default_rng(0).integers(-127, 128, (8, 6)).astype(np.int8)
    # A value halfway between two quantization steps may be rounded the other way.
    model, record = changed_by(as_float16, model_from(QDQ, w=weight, **qparams), 35.0)
    assert record.declined == ()
    for node in model.graph:
        if node.op_type == "QuantizeLinear":
            assert [v.dtype for v in node.inputs if v is not None][:2] == [ir.DataType.FLOAT16] * 2


def test_scale_that_would_underflow_stays_in_float32_between_casts() -> None:
    qparams = {"s": np.float32(1e-9), "z": np.int8(0), "ws": np.full(6, 0.01, np.float32)}
    weight = np.random.default_rng(0).integers(-127, 128, (8, 6)).astype(np.int8)
    original = model_from(QDQ, w=weight, **qparams)
    model = original.clone()
    record = as_float16(model)
    check_valid(model)
    assert [site.where for site in record.declined] == ["q", "d"]
    assert "1e-09 is below the smallest normal float16" in record.declined[0].what
    quantize = next(node for node in model.graph if node.op_type == "QuantizeLinear")
    assert quantize.inputs[1] is not None
    assert quantize.inputs[1].dtype is ir.DataType.FLOAT


def test_scale_with_another_consumer_is_copied() -> None:
    text = """g (float[4,8] x) => (float[4,8] y, float[4,8] t)
    { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) t = Mul(x, s) }"""
    original = model_from(text, s=np.float32(1e-6), z=np.int8(0))
    model = original.clone()
    record = as_float16(model)
    check_valid(model)
    assert {site.where for site in record.declined} == {"q", "y", "t"}
    original = model_from(text, s=np.float32(0.25), z=np.int8(0))
    changed_by(as_float16, original, FLOOR_DB)


def test_epsilon_keeps_its_operator_in_float32() -> None:
    text = "g (float[4,8] x) => (float[4,8] y) <float eps = {1e-12}> { a = Mul(x, x) b = Add(a, eps) y = Sqrt(b) }"
    model, record = changed_by(as_float16, model_from(text), FLOOR_DB)
    assert [site.where for site in record.declined] == ["b"]
    add = next(node for node in model.graph if node.op_type == "Add")
    assert all(v is not None and v.dtype is ir.DataType.FLOAT for v in (*add.inputs, *add.outputs))


def float16_constants(model: ir.Model) -> dict[str, np.ndarray]:
    """The float16 constants, by their original names."""
    arrays = {str(v.name): v.const_value.numpy() for v in model.graph.initializers.values() if v.const_value}
    return {name.partition("/half")[0]: array for name, array in arrays.items() if array.dtype == np.float16}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("n = ReduceL2(x, last) c = Clip(n, e) y = Div(x, c)", {"Clip", "Div"}),
        ("n = ReduceL2(x, last) c = Max(n, e) b = Expand(c, full) y = Div(x, b)", {"Max", "Expand", "Div"}),
        ("q = Mul(x, x) v = ReduceMean(q, last) a = Add(v, e) s = Sqrt(a) y = Div(x, s)", {"Add", "Sqrt", "Div"}),
    ],
)
def test_a_vector_of_zeros_is_divided_in_float32(nodes: str, expected: set[str]) -> None:
    """In float16 the epsilon is zero, and 0/0 is NaN."""
    text = f"""g (float[2,4] x) => (float[2,4] y) <int64[1] last = {{-1}}, int64[2] full = {{2,4}}, float e = {{1e-12}}>
        {{ {nodes} }}"""
    model = model_from(text)
    record = as_float16(model)
    kept = {node.op_type for node in model.graph if node.outputs[0].dtype is ir.DataType.FLOAT} - {"Cast"}
    assert kept == expected
    assert len(record.declined) == len(expected)
    sample = {"x": np.array([[0, 0, 0, 0], [1, 2, 3, 4]], np.float32)}
    (result,) = run(model, sample).values()
    assert np.isfinite(result).all()
    assert not result[0].any()


# One row is completely masked. The values of that row have no meaning, because it depends on the rounding of the sum
# how much of the scores is left, but they must be finite.
ROWS = np.where(np.arange(4)[:, None] == 2, False, np.tri(4, dtype=bool))
SELECTED_MASK = "m = Where(c, zero, low) e = Unsqueeze(m, axis)"


@pytest.mark.parametrize("low", [-65504.0, -1e9, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("s = Add(x, mask) y = Softmax(s)", 1),
        ("t = Add(x, mask) s = Add(t, mask) y = Softmax(s)", 2),
        ("t = Add(x, mask) s = Add(t, mask) u = Add(s, mask) y = Softmax(u)", 3),
        ("s = Where(c, x, low) y = Softmax(s)", 1),
        (f"{SELECTED_MASK} s = Add(e, x) y = Softmax(s)", 1),
        ("t = Add(x, mask) s = Mul(t, four) y = Softmax(s)", 4),
    ],
)
def test_completely_masked_row_stays_finite(text: str, count: int, low: float) -> None:
    constants = {
        "mask": np.where(ROWS, 0, np.float32(low if count == 1 else max(low, -1e30))).astype(np.float32),
        "c": ROWS[None, None],
        "low": np.float32(low),
        "zero": np.float32(0),
        "four": np.float32(4),
        "axis": np.array([0]),
    }
    used = {name: array for name, array in constants.items() if re.search(rf"\b{name}\b", text)}
    if "Unsqueeze" in text:
        used["c"] = ROWS[None]
    original = model_from(f"g (float[1,2,4,4] x) => (float[1,2,4,4] y) {{ {text} }}", **used)
    model = original.clone()
    as_float16(model)
    check_valid(model)
    inputs = random_inputs(original)
    expected, actual = (run(variant, inputs)["y"] for variant in (original, model))
    unmasked = ROWS.any(axis=-1)
    assert sqnr_db(expected[:, :, unmasked], actual[:, :, unmasked]) >= FLOOR_DB
    assert actual[:, :, ~unmasked].sum(axis=-1) == pytest.approx(1, abs=1e-2)
    lowest = float16_constants(model)["mask" if "mask" in used else "low"].min()
    # In true float16 arithmetic: all masks together, plus a score far below any in this test.
    assert np.isfinite(np.float16(count * float(lowest)) + np.float16(-5000))
    assert count * float(lowest) <= -30000


def test_mask_with_other_consumers_is_raised_for_the_softmax_only() -> None:
    text = """g (float[1,2,4,4] x) => (float[1,2,4,4] y, float[1,2,4,4] u, float[1,2,4,4] v)
    { s = Add(x, mask) y = Softmax(s) u = Add(x, mask) t = Add(x, other) z = Softmax(t) v = Add(t, z) }"""
    mask = np.where(ROWS, 0, np.float32(-50000)).astype(np.float32)
    model, _ = changed_by(as_float16, model_from(text, mask=mask, other=mask), FLOOR_DB)
    stored = [v.const_value.numpy().min() for v in model.graph.initializers.values() if v.const_value is not None]
    assert sorted(stored) == [np.float16(-50000), np.float16(-50000), -30000]


def test_integers_and_their_casts_are_not_changed() -> None:
    text = """g (int64[4] i) => (float[4] y, int64[4] j) <int64 one = {1}>
    { j = Add(i, one) f = Cast<to = 1>(j) y = Sqrt(f) }"""
    model, _ = changed_by(as_float16, model_from(text), FLOOR_DB)
    assert next(n for n in model.graph if n.op_type == "Cast").outputs[0].dtype is ir.DataType.FLOAT16


def test_old_opset_is_refused_for_a_graph_with_scales() -> None:
    qdq = "<float s = {0.5}, int8 z = {0}> { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    with pytest.raises(InputError, match="the model uses opset 17, but float16 scales require opset 19"):
        as_float16(model_from(f"g (float[4] x) => (float[4] y) {qdq}", opset=17))
    changed_by(as_float16, model_from("g (float[4] x) => (float[4] y) { y = Relu(x) }", opset=17), FLOOR_DB)


@pytest.mark.parametrize(("value", "reason"), [(0.5, ""), (0.0, ""), (6e-8, "below"), (1e6, "above"), (6.2e-5, "")])
def test_values_that_float16_can_hold(value: float, reason: str) -> None:
    assert reason in why_not_float16(np.asarray(value, np.float32))
    assert bool(reason) == bool(why_not_float16(np.asarray(value, np.float32)))


def test_shared_weight_is_converted_once_for_all_its_consumers() -> None:
    text = "g (float[4,8] x) => (float[4,8] y, float[4,8] u) { y = MatMul(x, w) u = MatMul(y, w) }"
    model, _ = changed_by(as_float16, model_from(text, w=normal(8, 8) / 8), FLOOR_DB)
    matmuls = [node for node in model.graph if node.op_type == "MatMul"]
    assert matmuls[0].inputs[1] is matmuls[1].inputs[1]
    assert len(model.graph.initializers) == 1


def test_shared_quantized_weight_keeps_both_its_scales() -> None:
    """One scale fits into float16, the other stays in float32 between Casts; both use the same integers."""
    text = """g (float[4,8] x) => (float[4,6] y, float[4,6] u)
    { a = DequantizeLinear(w, s) b = DequantizeLinear(w, tiny) y = MatMul(x, a) u = MatMul(x, b) }"""
    weight = np.random.default_rng(0).integers(-127, 128, (8, 6)).astype(np.int8)
    original = model_from(text, w=weight, s=np.float32(0.03125), tiny=np.float32(2**-20))
    model, record = changed_by(as_float16, original, 35.0)
    assert [site.where for site in record.declined] == ["b"]
    dequantizes = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    assert dequantizes[0].inputs[0] is dequantizes[1].inputs[0]


def test_consecutive_casts_and_transposes_end_in_float16() -> None:
    text = """g (float[4,8] x, int64[8,4] i) => (float[8,4] y)
    { c = Cast<to = 1>(i) t = Transpose<perm = [1,0]>(x) h = Cast<to = 10>(t) f = Cast<to = 1>(h) y = Add(f, c) }"""
    model, _ = changed_by(as_float16, model_from(text), FLOOR_DB)
    add = next(node for node in model.graph if node.op_type == "Add")
    assert all(v is not None and v.dtype is ir.DataType.FLOAT16 for v in (*add.inputs, *add.outputs))
