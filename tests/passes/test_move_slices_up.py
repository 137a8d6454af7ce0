from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of
from dovetail.passes.move_slices_up import move_slices_up
from tests.equality import changed_by, model_from, ops

FIRST = "int64[1] s = {0}, int64[1] e = {1}, int64[1] a = {1}"
SLICE = "Slice(h, s, e, a)"


def shapes(model: ir.Model, op: str) -> list[tuple[int, ...] | None]:
    return [shape_of(node.outputs[0]) for node in model.graph if node.op_type == op]


@pytest.mark.parametrize(
    ("inputs", "nodes", "shape"),
    [
        ("float[2,6,4] x", "h = Gelu(x)", [2, 1, 4]),
        ("float[2,6,4] x, float[6,4] z", "h = Add(x, z)", [2, 1, 4]),
        ("float[2,6,4] x, float[4] z", "h = Mul(z, x)", [2, 1, 4]),
        ("float[2,6,4] x, float[2,1,4] z", "h = Sub(x, z)", [2, 1, 4]),
        ("float[2,6,4] x", "h = Clip(x, low)", [2, 1, 4]),
        ("float[2,6,4] x", "h = Softmax(x)", [2, 1, 4]),
        ("float[2,6,4] x", "h = Softmax<axis=0>(x)", [2, 1, 4]),
        ("float[2,6,4] x", "h = LayerNormalization(x, four)", [2, 1, 4]),
        ("float[4,6,2] x", "h = Transpose(x)", [2, 1, 4]),
        ("float[2,24] x", "h = Reshape(x, rows)", None),
        ("float[12,4] x", "h = Reshape(x, rows)", None),
        ("float[2,6,2,2] x", "h = Reshape(x, rows)", [2, 1, 4]),
        ("float[2,6,3] x, float[2,3,4] z", "h = MatMul(x, z)", [2, 1, 4]),
        ("float[1,6,3] x, float[2,3,4] z", "h = MatMul(x, z)", [2, 1, 4]),
        ("float[2,6,4] x", "h = LayerNormalization<axis=1>(x, four)", None),
        ("float[2,6,4] x, float[6,4] z", "h = LayerNormalization(x, z)", None),
        ("float[2,6,4] x, float[1,6,4] z", "h = LayerNormalization(x, four, z)", None),
        ("float[2,6,4] x", "h = Softmax<axis=1>(x)", None),
        ("float[2,1,4] x, float[2,5,4] z", "h = Concat<axis=1>(x, z)", None),
        ("float[3,6] x, float[2,4,3] z", "p = MatMul(z, x) h = Transpose<perm=[0,2,1]>(p)", [2, 4, 6]),
    ],
)
def test_only_the_used_rows_are_computed(inputs: str, nodes: str, shape: list[int] | None) -> None:
    constants = f"<{FIRST}, int64[3] rows = {{2,6,4}}, float low = {{-0.5}}, float[4] four = {{1,2,3,4}}>"
    text = f"g ({inputs}) => (float[2,1,4] y) {constants} {{ {nodes} v = {SLICE} y = Relu(v) }}"
    before = model_from(text)
    after, record = changed_by(move_slices_up, before)
    if shape is None:
        assert ops(after) == ops(before)
        assert record.changed == ()
        return
    first = next(node for node in after.graph if node.op_type != "Slice")
    assert shape_of(first.outputs[0]) == tuple(shape)
    assert record.changed[-1].what.startswith("computed only for indices 0 to 1 of axis")


def test_rows_of_a_linear_layer_unless_the_bias_has_rows() -> None:
    constants = "float[3,4] w = {1,2,3,4,5,6,7,8,9,1,2,3}, float[4] b = {1,2,3,4}, int64[1] s = {2}, int64[1] e = {-1}"
    for added, changed in (("", True), (", b", True), (", row", True), (", rows", False)):
        inputs = "float[6,3] x, float[1,4] row, float[6,4] rows"
        text = (
            f"g ({inputs}) => (float[3,4] y) <{constants}> {{ h = Gemm(x, w{added}) v = Slice(h, s, e) y = Relu(v) }}"
        )
        after, _ = changed_by(move_slices_up, model_from(text))
        assert shapes(after, "Gemm") == [(3, 4) if changed else (6, 4)]


BLOCK = """g (float[1,6,8] x) => (float[1,1,8] y) <int64[1] s = {0}, int64[1] e = {1}, int64[1] a = {1},
    int64[4] heads = {1,6,2,4}, int64[3] joined = {1,6,8}>
{
    n = LayerNormalization(x, g)  q = MatMul(n, qw)  k = MatMul(n, kw)  v = MatMul(n, vw)
    q4 = Reshape(q, heads)  k4 = Reshape(k, heads)  v4 = Reshape(v, heads)
    qt = Transpose<perm=[0,2,1,3]>(q4)  kt = Transpose<perm=[0,2,3,1]>(k4)  vt = Transpose<perm=[0,2,1,3]>(v4)
    sc = MatMul(qt, kt)  w = Softmax(sc)  mix = MatMul(w, vt)  mt = Transpose<perm=[0,2,1,3]>(mix)
    mj = Reshape(mt, joined)  o = MatMul(mj, qw)  r = Add(x, o)
    m = LayerNormalization(r, g)  f = MatMul(m, kw)  fg = Gelu(f)  z = Add(r, fg)  y = Slice(z, s, e, a)
}"""


def test_last_block_is_computed_for_the_class_token_only() -> None:
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((8, 8), np.float32) for name in ("qw", "kw", "vw")}
    after, record = changed_by(move_slices_up, model_from(BLOCK, g=np.ones(8, np.float32), **weights))
    assert shapes(after, "LayerNormalization") == [(1, 6, 8), (1, 1, 8)], "keys and values need every row"
    assert sorted(shapes(after, "MatMul")) == sorted(
        [(1, 1, 8), (1, 6, 8), (1, 6, 8), (1, 2, 1, 6), (1, 2, 1, 4), (1, 1, 8), (1, 1, 8)]
    )
    assert shapes(after, "Slice") == [(1, 1, 8), (1, 1, 8)], "of the queries and of the residual stream"
    assert len(record.changed) == 14


@pytest.mark.parametrize(
    ("outputs", "nodes"),
    [
        ("float[2,1,4] y, float[2,6,4] z", f"h = Gelu(x) y = {SLICE} z = Relu(h)"),
        ("float[2,1,4] y, float[2,6,4] h", f"h = Gelu(x) y = {SLICE}"),
        ("float[2,1,4] y, float[2,1,4] z", f"h = Gelu(x) y = {SLICE} z = Slice(h, e, two, a)"),
        ("float[2,4,4] y", "h = Gelu(x) y = Slice(h, two, six, a)"),
        ("float[2,3,4] y", "h = Gelu(x) y = Slice(h, s, six, a, two)"),
        ("float[n,m,k] y", "h = Gelu(x) y = Slice(h, i, e, a)"),
    ],
)
def test_node_with_other_consumers_or_a_large_slice_stays(outputs: str, nodes: str) -> None:
    constants = f"<{FIRST}, int64[1] two = {{2}}, int64[1] six = {{6}}>"
    before = model_from(f"g (float[2,6,4] x, int64[1] i) => ({outputs}) {constants} {{ {nodes} }}")
    after, record = changed_by(move_slices_up, before)
    assert ops(after) == ops(before)
    assert record.changed == ()


def test_slices_of_the_same_range_are_shared() -> None:
    text = f"g (float[2,6,4] x) => (float[2,1,4] y, float[2,1,4] z) <{FIRST}> "
    after, _ = changed_by(
        move_slices_up, model_from(text + f"{{ h = Gelu(x) u = {SLICE} v = {SLICE} y = Relu(u) z = Neg(v) }}")
    )
    assert ops(after) == ["Slice", "Gelu", "Relu", "Neg"]


def test_input_is_sliced_once_and_takes_over_the_origin() -> None:
    text = f"g (float[2,6,4] x) => (float[2,1,4] y) <{FIRST}> "
    text += "{ h = Relu(x) q = Mul(h, h) v = Slice(q, s, e, a) y = Neg(v) }"
    after, _ = changed_by(move_slices_up, model_from(text))
    assert ops(after) == ["Slice", "Relu", "Mul", "Neg"]
    relu, mul = (next(node for node in after.graph if node.op_type == op) for op in ("Relu", "Mul"))
    for node, name in ((relu, "h"), (mul, "q")):
        origin = origin_of(node.outputs[0])
        assert origin.exact
        assert name in origin.names


def test_layer_and_its_relu_stay_together() -> None:
    text = f"g (float[1,4,6,6] x) => (float[1,1,6,6] y) <{FIRST}> {{ c = Conv(x, w) h = Relu(c) y = {SLICE} }}"
    after, record = changed_by(move_slices_up, model_from(text, w=np.ones((4, 4, 1, 1), np.float32)))
    assert ops(after) == ["Conv", "Relu", "Slice"]
    assert record.changed == ()
