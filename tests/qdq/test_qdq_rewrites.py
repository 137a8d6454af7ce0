"""Rewrites of another tool's Q/DQ pairs, edge by edge: outputs, second consumers, tied weights, order of rewrites."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from dovetail.model.edit import constant_of
from dovetail.pass_record import Pass, PassRecord
from dovetail.qdq.fold_casts import fold_casts
from dovetail.qdq.params import is_dequantize, is_quantize
from dovetail.qdq.scale_before_quantize import scale_before_quantize
from dovetail.qdq.transpose_before_quantize import transpose_before_quantize, transpose_stored_weights
from tests.equality import changed_by, check_valid, model_from, ops, random_inputs, run

S, Z = np.float32(0.03125), np.int8(0)
HALF, FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
# The Q/DQ pairs round the same values: only float32 rounding differs, 2^-24 of a value.
SAME_DB = 100.0
# With a scale that float16 rounds, some values are quantized to the next step.
HALF_DB = 25.0


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8)


def scale_of(model: ir.Model, name: str) -> np.ndarray:
    """The scale of the DequantizeLinear whose output has this name."""
    node = next(n for n in model.graph if is_dequantize(n) and n.outputs[0].name == name)
    scale = constant_of(node.inputs[1])
    assert scale is not None
    return scale


def producer_of(model: ir.Model, name: str, index: int) -> ir.Node:
    """The producer of an input of the node with this name."""
    node = next(n for n in model.graph if n.name == name)
    value = node.inputs[index]
    assert value is not None
    producer = value.producer()
    assert producer is not None
    return producer


def both(first: Pass, second: Pass) -> Pass:
    """Two passes in sequence, with the record of the second."""

    def run(model: ir.Model) -> PassRecord:
        first(model)
        return second(model)

    return run


# Cast folding.

AFTER = """g (float[4,8] x) => (float16[4,6] y{more})
{{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) c = Cast<to = 10>(d)
  wd = DequantizeLinear<axis = 1>(w, ws) wc = Cast<to = 10>(wd) [matmul] y = MatMul(c, wc) {tail} }}"""
AROUND = """g (float16[4,8] x) => (float16[4,8] y{more})
{{ f = Cast<to = 1>(x) q = QuantizeLinear(f, s, z) d = DequantizeLinear(q, s, z) c = Cast<to = 10>(d)
  y = Relu(c) {tail} }}"""
WEIGHT = {"w": integers(8, 6), "ws": np.full(6, 0.0078125, np.float32)}


def test_a_cast_after_a_pair_and_after_a_weight_is_folded() -> None:
    given = model_from(AFTER.format(more="", tail=""), s=S, z=Z, **WEIGHT)
    model, record = changed_by(fold_casts, given, SAME_DB)
    assert "Cast" not in ops(model)
    assert {node.outputs[0].dtype for node in model.graph if is_dequantize(node)} == {HALF}
    assert [site.where for site in record.changed] == ["c", "wc"]
    assert record.declined == ()


def test_a_cast_on_both_sides_is_folded_and_the_pair_is_float16() -> None:
    model, record = changed_by(fold_casts, model_from(AROUND.format(more="", tail=""), s=S, z=Z), SAME_DB)
    assert ops(model) == ["QuantizeLinear", "DequantizeLinear", "Relu"]
    quantize = next(node for node in model.graph if is_quantize(node))
    assert {quantize.inputs[0].dtype, quantize.inputs[1].dtype} == {HALF}  # type: ignore[union-attr]
    assert len(record.changed) == 1


def test_a_consumer_without_a_cast_keeps_the_float32_pair_and_its_scale() -> None:
    """float16 cannot represent the scale: the second consumer must not read values with the rounded one."""
    tail = "t = Relu(d)"
    given = model_from(AROUND.format(more=", float[4,8] t", tail=tail), s=np.float32(0.03), z=Z)
    model = changed_by(fold_casts, given, HALF_DB)[0]
    inputs = random_inputs(given)
    np.testing.assert_array_equal(run(given, inputs)["t"], run(model, inputs)["t"])
    assert scale_of(model, "d") == np.float32(0.03)
    relu = next(node for node in model.graph if node.outputs[0].name == "t")
    assert relu.inputs[0] is not None
    assert relu.inputs[0].name == "d"
    assert {float(constant_of(n.inputs[1])) for n in model.graph if is_quantize(n)} == {  # type: ignore[arg-type]
        float(np.float32(0.03)),
        float(np.float16(0.03)),
    }


def test_a_tied_weight_is_read_in_both_types() -> None:
    tail = "[other] t = MatMul(d, wd)"
    model, record = changed_by(
        fold_casts, model_from(AFTER.format(more=", float[4,6] t", tail=tail), s=S, z=Z, **WEIGHT), SAME_DB
    )
    assert producer_of(model, "matmul", 1).outputs[0].dtype is HALF
    assert producer_of(model, "other", 1).outputs[0].dtype is FLOAT
    assert producer_of(model, "matmul", 1).inputs[0] is producer_of(model, "other", 1).inputs[0]
    assert len(record.changed) == 2


def test_a_scale_with_another_consumer_is_copied() -> None:
    tail = "t = Mul(x, s)"
    given = model_from(AFTER.format(more=", float[4,8] t", tail=tail), s=S, z=Z, **WEIGHT)
    model = changed_by(fold_casts, given, SAME_DB)[0]
    assert model.graph.initializers["s"].dtype is FLOAT


def test_casts_and_transposes_in_a_row_are_folded() -> None:
    text = """g (float16[4,8] x) => (float16[4,8] y)
    { f = Cast<to = 1>(x) ft = Transpose<perm = [1,0]>(f) q = QuantizeLinear(ft, s, z) d = DequantizeLinear(q, s, z)
      dt = Transpose<perm = [1,0]>(d) c = Cast<to = 10>(dt) y = Relu(c) }"""
    model, record = changed_by(fold_casts, model_from(text, s=S, z=Z), SAME_DB)
    assert "Cast" not in ops(model)
    assert ops(model).count("Transpose") == 2
    assert len(record.changed) == 1


def test_a_cast_only_before_the_pair_is_folded_if_float16_does_not_round_the_scale() -> None:
    text = """g (float16[4,8] x) => (float[4,8] y)
    { f = Cast<to = 1>(x) q = QuantizeLinear(f, s, z) d = DequantizeLinear(q, s, z) y = Relu(d) }"""
    model, record = changed_by(fold_casts, model_from(text, s=S, z=Z), SAME_DB)
    assert "Cast" not in ops(model)
    given = model_from(text, s=np.float32(0.03), z=Z)
    model, record = changed_by(fold_casts, given)
    assert "Cast" in ops(model)
    assert "float16 would round the scale that its float32 consumers use" in record.declined[0].what


@pytest.mark.parametrize(
    ("scale", "opset", "why"),
    [
        (1e-9, 21, "below the smallest normal float16"),
        (1e5, 21, "above the largest float16"),
        (0.03125, 18, "opset 18 does not support float16 scales"),
    ],
)
def test_casts_that_are_kept(scale: float, opset: int, why: str) -> None:
    given = model_from(AFTER.format(more="", tail=""), opset=opset, s=np.float32(scale), z=Z, **WEIGHT)
    model = given.clone()
    record = fold_casts(model)
    check_valid(model)
    assert "c" in [site.where for site in record.declined]
    assert why in next(site.what for site in record.declined if site.where == "c")
    assert ops(model).count("Cast") == (1 if opset > 18 else 2)  # float16 can represent the weight's scale


def test_a_cast_from_integers_is_kept() -> None:
    text = """g (int64[4,8] i) => (float[4,8] y)
    { f = Cast<to = 1>(i) q = QuantizeLinear(f, s, z) d = DequantizeLinear(q, s, z) y = Relu(d) }"""
    model, record = changed_by(fold_casts, model_from(text, s=S, z=Z))
    assert ops(model) == ["Cast", "QuantizeLinear", "DequantizeLinear", "Relu"]
    assert record.changed == ()
    assert record.declined[0].what.endswith("it is from int64")


# Scales of attention.

SCALED = """g (float[2,4,8] a, float[2,6,8] b) => (float[2,4,6] y{more})
{{ qa = QuantizeLinear(a, s, z) da = DequantizeLinear(qa, s, z)
  qb = QuantizeLinear(b, s, z) db = DequantizeLinear(qb, s, z)
  {scaled} bt = Transpose<perm = [0,2,1]>(db) [scores] s0 = MatMul({query}, bt) {after} {tail} }}"""
FACTOR: dict[str, Any] = {"f": np.float32(0.37), "s": S, "z": Z}


def scaled(
    op: str = "m = Mul(da, f)", *, query: str = "m", after: str = "y = Softmax<axis = -1>(s0)", **text: str
) -> str:
    return SCALED.format(scaled=op, query=query, after=after, more=text.get("more", ""), tail=text.get("tail", ""))


@pytest.mark.parametrize("op", ["Mul(da, f)", "Mul(f, da)", "Div(da, f)"])
def test_a_scale_between_pair_and_matmul_is_moved_before_the_pair(op: str) -> None:
    model, record = changed_by(scale_before_quantize, model_from(scaled(f"m = {op}"), **FACTOR), 60)
    dequantize = producer_of(model, "scores", 0)
    assert is_dequantize(dequantize)
    factor = 0.37 if "Mul" in op else 1 / 0.37
    assert float(constant_of(dequantize.inputs[1])) == pytest.approx(S * factor)  # type: ignore[arg-type]
    assert ops(model).count("Mul") == 1
    assert "Div" not in ops(model)
    assert [site.where for site in record.changed] == ["m"]


def test_a_power_of_two_changes_no_quantized_value() -> None:
    given = model_from(scaled(), **{**FACTOR, "f": np.float32(0.125)})
    changed_by(scale_before_quantize, given, 300.0)


@pytest.mark.parametrize("op", ["Mul", "Div"])
def test_a_scale_on_the_scores_is_moved_to_the_query(op: str) -> None:
    text = scaled("", query="da", after=f"s1 = {op}(s0, f) s2 = Add(s1, mask) y = Softmax<axis = -1>(s2)")
    given = model_from(text, mask=np.zeros((4, 6), np.float32) - 1, **FACTOR)
    model, record = changed_by(scale_before_quantize, given, 60)
    assert [n.op_type for n in model.graph if n.op_type in ("Mul", "Div", "MatMul")] == ["Mul", "MatMul"]
    assert [site.where for site in record.changed] == ["s1"]


def test_a_second_consumer_of_the_pair_or_of_the_scaled_value_is_unaffected() -> None:
    given = model_from(scaled(more=", float[2,4,8] t, float[2,4,8] u", tail="t = Relu(da) u = Neg(m)"), **FACTOR)
    model = changed_by(scale_before_quantize, given, 60)[0]
    assert scale_of(model, "da") == S
    assert ops(model).count("Mul") == 2  # the old one for u


def test_scores_with_an_unscaled_consumer_keep_their_scale() -> None:
    text = scaled("", query="da", after="s1 = Mul(s0, f) y = Softmax<axis = -1>(s1)", more=", float[2,4,6] s0")
    record = changed_by(scale_before_quantize, model_from(text, **FACTOR))[1]
    assert record.changed == ()


def test_two_matmuls_that_share_a_scaled_pair_share_the_new_one() -> None:
    given = model_from(scaled(more=", float[2,4,6] w", tail="[again] w = MatMul(m, bt)"), **FACTOR)
    model, record = changed_by(scale_before_quantize, given, 60)
    assert producer_of(model, "scores", 0) is producer_of(model, "again", 0)
    assert len(record.changed) == 2


def test_a_scaled_quantized_weight_gets_another_scale_for_that_consumer_only() -> None:
    text = """g (float[4,8] x) => (float[4,6] y, float[4,6] t)
    { wd = DequantizeLinear<axis = 1>(w, ws) m = Mul(wd, f) [one] y = MatMul(x, m) [two] t = MatMul(x, wd) }"""
    model = changed_by(scale_before_quantize, model_from(text, f=FACTOR["f"], **WEIGHT))[0]
    assert "Mul" not in ops(model)
    assert producer_of(model, "one", 1).inputs[0] is producer_of(model, "two", 1).inputs[0]
    assert producer_of(model, "one", 1).inputs[1] is not producer_of(model, "two", 1).inputs[1]


def test_a_transpose_between_scale_and_matmul_is_kept() -> None:
    text = scaled("m0 = Mul(da, f) m1 = Transpose<perm = [0,2,1]>(m0) m = Transpose<perm = [0,2,1]>(m1)")
    model = changed_by(scale_before_quantize, model_from(text, **FACTOR), 60)[0]
    assert ops(model).count("Transpose") == 3


def test_a_cast_between_pair_and_scale_is_folded_first() -> None:
    text = """g (float[2,4,8] a, float16[2,8,6] b) => (float16[2,4,6] y)
    { q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z) t = Transpose<perm = [0,1,2]>(d) c = Cast<to = 10>(t)
      m = Mul(c, h) [scores] y = MatMul(m, b) }"""
    given = model_from(text, s=S, z=Z, h=np.float16(0.25))
    model, record = changed_by(both(fold_casts, scale_before_quantize), given, 40)
    assert len(record.changed) == 1
    assert ops(model).index("Mul") < ops(model).index("QuantizeLinear")


@pytest.mark.parametrize(
    ("factor", "why"),
    [
        (np.full((2, 1, 1), 0.3, np.float32), "not one constant scalar"),
        (np.float32(-0.5), "-0.5 is not above zero"),
        (np.float32(0), "0 is not above zero"),
        (np.float32(1e-38), "out of range"),
    ],
)
def test_scales_that_are_kept(factor: np.ndarray, why: str) -> None:
    model, record = changed_by(scale_before_quantize, model_from(scaled(), **{**FACTOR, "f": factor}))
    assert record.changed == ()
    assert why in record.declined[0].what
    assert "Mul" in ops(model)


# Transposes.

TRANSPOSED = """g (float[2,4,8] a, float[2,6,8] b) => (float[2,4,6] y{more})
{{ q = QuantizeLinear{axis}(b, s, z) d = DequantizeLinear{axis}(q, s, z)
  t = Transpose<perm = [0,2,1]>(d) [scores] y = MatMul(a, t) {tail} }}"""


def test_a_transpose_is_moved_before_the_pair() -> None:
    model, record = changed_by(
        transpose_before_quantize, model_from(TRANSPOSED.format(axis="", more="", tail=""), s=S, z=Z), 300.0
    )
    assert ops(model) == ["Transpose", "QuantizeLinear", "DequantizeLinear", "MatMul"]
    assert [site.where for site in record.changed] == ["t"]


@pytest.mark.parametrize(("axis", "size", "moved"), [(2, 8, 1), (-2, 6, 2), (0, 2, 0)])
def test_the_axis_of_per_channel_scales_is_permuted_too(axis: int, size: int, moved: int) -> None:
    text = TRANSPOSED.format(axis=f"<axis = {axis}>", more="", tail="")
    scales = np.linspace(0.02, 0.05, size).astype(np.float32)
    given = model_from(text, s=scales, z=np.zeros(size, np.int8))
    model, record = changed_by(transpose_before_quantize, given, 300.0)
    assert producer_of(model, "scores", 1).attributes["axis"].value == moved
    assert record.changed[0].what == f"Transpose moved before QuantizeLinear, scales now on axis {moved}"


def test_a_second_consumer_of_pair_and_transpose_is_unaffected() -> None:
    text = TRANSPOSED.format(axis="", more=", float[2,6,8] u, float[2,8,6] v", tail="u = Relu(d) v = Neg(t)")
    model = changed_by(transpose_before_quantize, model_from(text, s=S, z=Z), 300.0)[0]
    assert ops(model).count("QuantizeLinear") == 2
    assert is_dequantize(producer_of(model, "scores", 1))


WEIGHTS = """g (float[4,8] x) => (float[4,6] y{more})
{{ d = DequantizeLinear<axis = 0>(w, ws) t = Transpose<perm = [1,0]>(d) [matmul] y = MatMul(x, t) {tail} }}"""
TIED = ", float[4,6] u, float[6,8] e"


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.float8_e4m3fn])
def test_a_quantized_weight_is_transposed_with_its_scales(dtype: Any) -> None:
    weight = {"w": (integers(6, 8) / (1 if dtype is np.int8 else 4)).astype(dtype)}
    weight["ws"] = np.linspace(0.01, 0.02, 6).astype(np.float32)
    model, record = changed_by(transpose_stored_weights, model_from(WEIGHTS.format(more="", tail=""), **weight), 300.0)
    assert ops(model) == ["DequantizeLinear", "MatMul"]
    assert producer_of(model, "matmul", 1).attributes["axis"].value == 1
    assert record.changed[0].what == "Transpose folded into the quantized weight, scales now on axis 1"


def test_a_tied_weight_is_unchanged_for_its_other_consumers() -> None:
    text = WEIGHTS.format(more=TIED, tail="[other] u = MatMul(x, t) e = Relu(d)")
    given = model_from(text, w=integers(6, 8), ws=np.full(6, 0.01, np.float32))
    model, record = changed_by(transpose_stored_weights, given, 300.0)
    assert producer_of(model, "matmul", 1) is producer_of(model, "other", 1)  # transposed once for both
    assert "w" in model.graph.initializers
    assert len(record.changed) == 2


def test_a_cast_between_pair_and_transpose_is_folded_first() -> None:
    text = """g (float16[4,8] x) => (float16[4,6] y)
    { d = DequantizeLinear<axis = 0>(w, ws) c = Cast<to = 10>(d) t = Transpose<perm = [1,0]>(c)
      [matmul] y = MatMul(x, t) }"""
    given = model_from(text, w=integers(6, 8), ws=np.full(6, 0.0078125, np.float32))
    _, record = changed_by(transpose_stored_weights, given)
    assert "a Cast is between them" in record.declined[0].what
    model = changed_by(both(fold_casts, transpose_stored_weights), given, SAME_DB)[0]
    assert ops(model) == ["DequantizeLinear", "MatMul"]


def test_per_block_scales_and_quantized_inputs_are_kept() -> None:
    text = WEIGHTS.replace("axis = 0>", "axis = 0, block_size = 2>").format(more="", tail="")
    given = model_from(text, w=integers(6, 8), ws=np.full((3, 8), 0.01, np.float32))
    record = changed_by(transpose_stored_weights, given)[1]
    assert (record.changed, record.declined[0].what.rpartition(": ")[2]) == ((), "its scales are per block")
    text = """g (float[4,8] x, int8[6,8] w) => (float[4,6] y)
    { d = DequantizeLinear(w, s) t = Transpose<perm = [1,0]>(d) y = MatMul(x, t) }"""
    why = "its input is neither a constant nor the output of QuantizeLinear"
    for rewrite in (transpose_stored_weights, transpose_before_quantize):
        record = changed_by(rewrite, model_from(text, s=S))[1]
        assert (record.changed, record.declined[0].what.rpartition(": ")[2]) == ((), why)


# Cases that look like a simpler one.

WITH_AXES = """g (float[4,8] x) => (float{shape} y)
{{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) m = Mul(d, f) y = MatMul(m, w) }}"""


def test_a_factor_that_adds_axes_is_not_a_scale() -> None:
    weight, factor = np.ones((8, 6), np.float32), np.full((1, 1, 1), 0.5, np.float32)
    model = model_from(WITH_AXES.format(shape="[1,4,6]"), s=S, z=Z, w=weight, f=factor)
    after, record = changed_by(scale_before_quantize, model, SAME_DB)
    assert record.changed == ()
    assert "Mul" in ops(after)


OUTPUT_DTYPE = """g (float[4,8] x) => (float[4,6] y)
{ q = QuantizeLinear(x, s, z) d = DequantizeLinear<output_dtype = 1>(q, s, z)
  m = Mul(d, f) [matmul] y = MatMul(m, w) }"""


def test_output_dtype_of_a_dequantize_follows_its_new_scale() -> None:
    weight = np.ones((8, 6), np.float32)
    model = model_from(OUTPUT_DTYPE, opset=23, s=S, z=Z, w=weight, f=np.float32(0.5))
    after, record = changed_by(scale_before_quantize, model, SAME_DB)
    assert len(record.changed) == 1
    assert "output_dtype" not in producer_of(after, "matmul", 0).attributes
    halved = OUTPUT_DTYPE.replace("float[4,6] y", "float16[4,6] y").replace("output_dtype = 1", "output_dtype = 10")
    other = model_from(halved, opset=23, s=S, z=Z, w=weight.astype(np.float16), f=np.float16(0.5))
    declined = scale_before_quantize(other)
    assert "its output_dtype differs from the dtype of its scale" in declined.declined[0].what
