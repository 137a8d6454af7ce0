"""Rewrites of another tool's pairs, edge by edge: numbers, second readers, tied weights, Casts before Transposes."""

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
# Pairs round the same values: what a step of float32 changes is 2^-24 of it.
SAME_DB = 100.0
# A scale that float16 rounds moves values to the next step here and there.
HALF_DB = 25.0


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8)


def scale_of(model: ir.Model, name: str) -> np.ndarray:
    """The scale of the Dequantize behind which a value of this name stands."""
    node = next(n for n in model.graph if is_dequantize(n) and n.outputs[0].name == name)
    found = constant_of(node.inputs[1])
    assert found is not None
    return found


def reads(model: ir.Model, product: str, index: int) -> ir.Node:
    """What makes an operand of a product."""
    node = next(n for n in model.graph if n.name == product)
    value = node.inputs[index]
    assert value is not None
    maker = value.producer()
    assert maker is not None
    return maker


def both(first: Pass, second: Pass) -> Pass:
    """Two passes one behind the other, with the record of the second."""

    def run(model: ir.Model) -> PassRecord:
        first(model)
        return second(model)

    return run


# Cast folding.

BEHIND = """g (float[4,8] x) => (float16[4,6] y{more})
{{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) c = Cast<to = 10>(d)
  wd = DequantizeLinear<axis = 1>(w, ws) wc = Cast<to = 10>(wd) [product] y = MatMul(c, wc) {tail} }}"""
AROUND = """g (float16[4,8] x) => (float16[4,8] y{more})
{{ f = Cast<to = 1>(x) q = QuantizeLinear(f, s, z) d = DequantizeLinear(q, s, z) c = Cast<to = 10>(d)
  y = Relu(c) {tail} }}"""
WEIGHT = {"w": integers(8, 6), "ws": np.full(6, 0.0078125, np.float32)}


def test_a_cast_behind_a_pair_and_behind_a_weight_is_folded() -> None:
    given = model_from(BEHIND.format(more="", tail=""), s=S, z=Z, **WEIGHT)
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


def test_a_reader_without_a_cast_keeps_the_float32_pair_and_its_scale() -> None:
    """The scale is no float16 number: the second reader must not see the rounded one."""
    tail = "t = Relu(d)"
    given = model_from(AROUND.format(more=", float[4,8] t", tail=tail), s=np.float32(0.03), z=Z)
    model = changed_by(fold_casts, given, HALF_DB)[0]
    inputs = random_inputs(given)
    np.testing.assert_array_equal(run(given, inputs)["t"], run(model, inputs)["t"])  # to the last bit
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
        fold_casts, model_from(BEHIND.format(more=", float[4,6] t", tail=tail), s=S, z=Z, **WEIGHT), SAME_DB
    )
    assert reads(model, "product", 1).outputs[0].dtype is HALF
    assert reads(model, "other", 1).outputs[0].dtype is FLOAT
    assert reads(model, "product", 1).inputs[0] is reads(model, "other", 1).inputs[0]
    assert len(record.changed) == 2


def test_a_scale_that_something_else_reads_is_copied() -> None:
    tail = "t = Mul(x, s)"
    given = model_from(BEHIND.format(more=", float[4,8] t", tail=tail), s=S, z=Z, **WEIGHT)
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


def test_a_cast_in_front_alone_is_folded_where_nobody_sees_another_scale() -> None:
    text = """g (float16[4,8] x) => (float[4,8] y)
    { f = Cast<to = 1>(x) q = QuantizeLinear(f, s, z) d = DequantizeLinear(q, s, z) y = Relu(d) }"""
    model, record = changed_by(fold_casts, model_from(text, s=S, z=Z), SAME_DB)
    assert "Cast" not in ops(model)
    given = model_from(text, s=np.float32(0.03), z=Z)
    model, record = changed_by(fold_casts, given)
    assert "Cast" in ops(model)
    assert "readers in float32 would see another scale" in record.declined[0].what


@pytest.mark.parametrize(
    ("scale", "opset", "why"),
    [
        (1e-9, 21, "below the smallest normal float16"),
        (1e5, 21, "above the largest float16"),
        (0.03125, 18, "opset 18 has no float16 scales"),
    ],
)
def test_casts_that_stay(scale: float, opset: int, why: str) -> None:
    given = model_from(BEHIND.format(more="", tail=""), opset=opset, s=np.float32(scale), z=Z, **WEIGHT)
    model = given.clone()
    record = fold_casts(model)
    check_valid(model)
    assert "c" in [site.where for site in record.declined]
    assert why in next(site.what for site in record.declined if site.where == "c")
    assert ops(model).count("Cast") == (1 if opset > 18 else 2)  # the weight's own scale is fine


def test_a_cast_from_integers_is_no_such_cast() -> None:
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
  {scaled} bt = Transpose<perm = [0,2,1]>(db) [scores] s0 = MatMul({query}, bt) {behind} {tail} }}"""
FACTOR: dict[str, Any] = {"f": np.float32(0.37), "s": S, "z": Z}


def scaled(
    op: str = "m = Mul(da, f)", *, query: str = "m", behind: str = "y = Softmax<axis = -1>(s0)", **text: str
) -> str:
    return SCALED.format(scaled=op, query=query, behind=behind, more=text.get("more", ""), tail=text.get("tail", ""))


@pytest.mark.parametrize("op", ["Mul(da, f)", "Mul(f, da)", "Div(da, f)"])
def test_a_scale_between_pair_and_product_goes_in_front_of_the_pair(op: str) -> None:
    model, record = changed_by(scale_before_quantize, model_from(scaled(f"m = {op}"), **FACTOR), 60)
    read = reads(model, "scores", 0)
    assert is_dequantize(read)
    factor = 0.37 if "Mul" in op else 1 / 0.37
    assert float(constant_of(read.inputs[1])) == pytest.approx(S * factor)  # type: ignore[arg-type]
    assert ops(model).count("Mul") == 1
    assert "Div" not in ops(model)
    assert [site.where for site in record.changed] == ["m"]


def test_a_power_of_two_leaves_every_integer_as_it_was() -> None:
    given = model_from(scaled(), **{**FACTOR, "f": np.float32(0.125)})
    changed_by(scale_before_quantize, given, 300.0)


@pytest.mark.parametrize("op", ["Mul", "Div"])
def test_a_scale_on_the_scores_goes_to_the_query(op: str) -> None:
    text = scaled("", query="da", behind=f"s1 = {op}(s0, f) s2 = Add(s1, mask) y = Softmax<axis = -1>(s2)")
    given = model_from(text, mask=np.zeros((4, 6), np.float32) - 1, **FACTOR)
    model, record = changed_by(scale_before_quantize, given, 60)
    assert [n.op_type for n in model.graph if n.op_type in ("Mul", "Div", "MatMul")] == ["Mul", "MatMul"]
    assert [site.where for site in record.changed] == ["s1"]


def test_a_second_reader_of_the_pair_or_of_the_scaled_value_sees_what_it_saw() -> None:
    given = model_from(scaled(more=", float[2,4,8] t, float[2,4,8] u", tail="t = Relu(da) u = Neg(m)"), **FACTOR)
    model = changed_by(scale_before_quantize, given, 60)[0]
    assert scale_of(model, "da") == S
    assert ops(model).count("Mul") == 2  # the old one for u


def test_scores_that_are_read_unscaled_too_keep_their_scale() -> None:
    text = scaled("", query="da", behind="s1 = Mul(s0, f) y = Softmax<axis = -1>(s1)", more=", float[2,4,6] s0")
    record = changed_by(scale_before_quantize, model_from(text, **FACTOR))[1]
    assert record.changed == ()


def test_two_products_that_share_a_scaled_pair_share_the_new_one() -> None:
    given = model_from(scaled(more=", float[2,4,6] w", tail="[again] w = MatMul(m, bt)"), **FACTOR)
    model, record = changed_by(scale_before_quantize, given, 60)
    assert reads(model, "scores", 0) is reads(model, "again", 0)
    assert len(record.changed) == 2


def test_a_scaled_stored_weight_gets_another_scale_and_its_twin_does_not() -> None:
    text = """g (float[4,8] x) => (float[4,6] y, float[4,6] t)
    { wd = DequantizeLinear<axis = 1>(w, ws) m = Mul(wd, f) [one] y = MatMul(x, m) [two] t = MatMul(x, wd) }"""
    model = changed_by(scale_before_quantize, model_from(text, f=FACTOR["f"], **WEIGHT))[0]
    assert "Mul" not in ops(model)
    assert reads(model, "one", 1).inputs[0] is reads(model, "two", 1).inputs[0]
    assert reads(model, "one", 1).inputs[1] is not reads(model, "two", 1).inputs[1]


def test_a_transpose_between_scale_and_product_stays_where_it_was() -> None:
    text = scaled("m0 = Mul(da, f) m1 = Transpose<perm = [0,2,1]>(m0) m = Transpose<perm = [0,2,1]>(m1)")
    model = changed_by(scale_before_quantize, model_from(text, **FACTOR), 60)[0]
    assert ops(model).count("Transpose") == 3


def test_a_cast_between_is_folded_first() -> None:
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
        (np.full((2, 1, 1), 0.3, np.float32), "not one constant number"),
        (np.float32(-0.5), "-0.5 is not above zero"),
        (np.float32(0), "0 is not above zero"),
        (np.float32(1e-38), "out of range"),
    ],
)
def test_scales_that_stay(factor: np.ndarray, why: str) -> None:
    model, record = changed_by(scale_before_quantize, model_from(scaled(), **{**FACTOR, "f": factor}))
    assert record.changed == ()
    assert why in record.declined[0].what
    assert "Mul" in ops(model)


# Transposes.

TURNED = """g (float[2,4,8] a, float[2,6,8] b) => (float[2,4,6] y{more})
{{ q = QuantizeLinear{axis}(b, s, z) d = DequantizeLinear{axis}(q, s, z)
  t = Transpose<perm = [0,2,1]>(d) [scores] y = MatMul(a, t) {tail} }}"""


def test_a_transpose_goes_in_front_of_the_pair() -> None:
    model, record = changed_by(
        transpose_before_quantize, model_from(TURNED.format(axis="", more="", tail=""), s=S, z=Z), 300.0
    )
    assert ops(model) == ["Transpose", "QuantizeLinear", "DequantizeLinear", "MatMul"]
    assert [site.where for site in record.changed] == ["t"]


@pytest.mark.parametrize(("axis", "size", "moved"), [(2, 8, 1), (-2, 6, 2), (0, 2, 0)])
def test_the_axis_of_scales_per_channel_moves_with_it(axis: int, size: int, moved: int) -> None:
    text = TURNED.format(axis=f"<axis = {axis}>", more="", tail="")
    scales = np.linspace(0.02, 0.05, size).astype(np.float32)
    given = model_from(text, s=scales, z=np.zeros(size, np.int8))
    model, record = changed_by(transpose_before_quantize, given, 300.0)
    assert reads(model, "scores", 1).attributes["axis"].value == moved
    assert record.changed[0].what.endswith(f"scales now along axis {moved}")


def test_a_second_reader_of_pair_and_transpose_sees_what_it_saw() -> None:
    text = TURNED.format(axis="", more=", float[2,6,8] u, float[2,8,6] v", tail="u = Relu(d) v = Neg(t)")
    model = changed_by(transpose_before_quantize, model_from(text, s=S, z=Z), 300.0)[0]
    assert ops(model).count("QuantizeLinear") == 2
    assert is_dequantize(reads(model, "scores", 1))


WEIGHTS = """g (float[4,8] x) => (float[4,6] y{more})
{{ d = DequantizeLinear<axis = 0>(w, ws) t = Transpose<perm = [1,0]>(d) [product] y = MatMul(x, t) {tail} }}"""
TIED = ", float[4,6] u, float[6,8] e"


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.float8_e4m3fn])
def test_a_stored_weight_is_turned_with_its_scales(dtype: Any) -> None:
    numbers = {"w": (integers(6, 8) / (1 if dtype is np.int8 else 4)).astype(dtype)}
    numbers["ws"] = np.linspace(0.01, 0.02, 6).astype(np.float32)
    model, record = changed_by(transpose_stored_weights, model_from(WEIGHTS.format(more="", tail=""), **numbers), 300.0)
    assert ops(model) == ["DequantizeLinear", "MatMul"]
    assert reads(model, "product", 1).attributes["axis"].value == 1
    assert record.changed[0].what == "the stored weight is transposed first, scales now along axis 1"


def test_a_tied_weight_stays_as_it_was_for_its_other_readers() -> None:
    text = WEIGHTS.format(more=TIED, tail="[other] u = MatMul(x, t) e = Relu(d)")
    given = model_from(text, w=integers(6, 8), ws=np.full(6, 0.01, np.float32))
    model, record = changed_by(transpose_stored_weights, given, 300.0)
    assert reads(model, "product", 1) is reads(model, "other", 1)  # turned once for both
    assert "w" in model.graph.initializers
    assert len(record.changed) == 2


def test_a_cast_between_pair_and_transpose_is_folded_first() -> None:
    text = """g (float16[4,8] x) => (float16[4,6] y)
    { d = DequantizeLinear<axis = 0>(w, ws) c = Cast<to = 10>(d) t = Transpose<perm = [1,0]>(c)
      [product] y = MatMul(x, t) }"""
    given = model_from(text, w=integers(6, 8), ws=np.full(6, 0.0078125, np.float32))
    _, record = changed_by(transpose_stored_weights, given)
    assert "a Cast stands between them" in record.declined[0].what
    model = changed_by(both(fold_casts, transpose_stored_weights), given, SAME_DB)[0]
    assert ops(model) == ["DequantizeLinear", "MatMul"]


def test_blocks_and_inputs_stay() -> None:
    text = WEIGHTS.replace("axis = 0>", "axis = 0, block_size = 2>").format(more="", tail="")
    given = model_from(text, w=integers(6, 8), ws=np.full((3, 8), 0.01, np.float32))
    record = changed_by(transpose_stored_weights, given)[1]
    assert (record.changed, record.declined[0].what.rpartition(": ")[2]) == ((), "its scales are per block")
    text = """g (float[4,8] x, int8[6,8] w) => (float[4,6] y)
    { d = DequantizeLinear(w, s) t = Transpose<perm = [1,0]>(d) y = MatMul(x, t) }"""
    for each in (transpose_stored_weights, transpose_before_quantize):
        record = changed_by(each, model_from(text, s=S))[1]
        assert (record.changed, record.declined[0].what.rpartition(": ")[2]) == ((), "its integers are an input")


# What must not be taken for something simpler.

WITH_AXES = """g (float[4,8] x) => (float{shape} y)
{{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) m = Mul(d, f) y = MatMul(m, w) }}"""


def test_a_factor_that_adds_axes_is_no_scale() -> None:
    weight, factor = np.ones((8, 6), np.float32), np.full((1, 1, 1), 0.5, np.float32)
    model = model_from(WITH_AXES.format(shape="[1,4,6]"), s=S, z=Z, w=weight, f=factor)
    after, record = changed_by(scale_before_quantize, model, SAME_DB)
    assert record.changed == ()
    assert "Mul" in ops(after)


SAID = """g (float[4,8] x) => (float[4,6] y)
{ q = QuantizeLinear(x, s, z) d = DequantizeLinear<output_dtype = 1>(q, s, z)
  m = Mul(d, f) [product] y = MatMul(m, w) }"""


def test_a_type_that_a_dequantize_says_follows_its_new_scale() -> None:
    weight = np.ones((8, 6), np.float32)
    model = model_from(SAID, opset=23, s=S, z=Z, w=weight, f=np.float32(0.5))
    after, record = changed_by(scale_before_quantize, model, SAME_DB)
    assert len(record.changed) == 1
    assert "output_dtype" not in reads(after, "product", 0).attributes
    halved = SAID.replace("float[4,6] y", "float16[4,6] y").replace("output_dtype = 1", "output_dtype = 10")
    other = model_from(halved, opset=23, s=S, z=Z, w=weight.astype(np.float16), f=np.float16(0.5))
    declined = scale_before_quantize(other)
    assert "it gives another type than that of its scale" in declined.declined[0].what
