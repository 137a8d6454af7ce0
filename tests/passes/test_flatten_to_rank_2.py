"""Row-wise operators run on flat rows."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from dovetail.model.edit import shape_of
from dovetail.passes.flatten_to_rank_2 import flatten_to_rank_2
from dovetail.passes.merge_layout import merge_layout
from tests.equality import changed_by, model_from, normal, ops

SHAPES = "<int64[3] tokens = {2,3,4}, int64[3] wide = {2,3,8}, int64[2] flat = {6,4}, int64[2] flat_wide = {6,8}>"
WEIGHTS = {"q": normal(4, 4), "w": normal(4, 8), "v": normal(8, 4), "g": normal(4), "b": normal(4)}
MLP = f"""g (float[6,4] i) => (float[2,3,4] y) {SHAPES}
    {{
        p = Gemm(i, q) x = Reshape(p, tokens)
        n = LayerNormalization<axis=-1>(x, g, b)
        f = Reshape(n, flat) l = Gemm(f, w) u = Reshape(l, wide) a = Gelu(u) h = Reshape(a, flat_wide) m = Gemm(h, v)
        o = Reshape(m, tokens) s = Mul(o, g) y = Add(x, s)
    }}"""


def _flattened(text: str, **constants: object) -> tuple[ir.Model, list[str]]:
    after, record = changed_by(flatten_to_rank_2, model_from(text, **constants))
    after, _ = changed_by(merge_layout, after)
    return after, [site.where for site in record.changed]


def test_everything_between_linear_layers_is_flat() -> None:
    after, where = _flattened(MLP, **WEIGHTS)
    assert where == ["n", "a"]
    assert ops(after) == ["Gemm", "LayerNormalization", "Gemm", "Gelu", "Gemm", "Mul", "Add", "Reshape"]


def test_second_consumer_still_gets_the_old_shape() -> None:
    text = MLP.replace("(float[2,3,4] y)", "(float[2,3,4] y, float[2,8,3] z)")
    after, _ = _flattened(text.replace("y = Add", "z = Transpose<perm=[0,2,1]>(a) y = Add"), **WEIGHTS)
    assert "Transpose" in ops(after)
    assert ops(after).count("Reshape") == 2


def test_nodes_are_not_flattened_if_that_saves_no_reshape() -> None:
    text = "g (float[2,3,4] x) => (float[2,3,4] y) { a = Neg(x) n = LayerNormalization<axis=-1>(a, g, b) y = Abs(n) }"
    after, where = _flattened(text, **{"g": normal(4), "b": normal(4)})
    assert ops(after) == ["Neg", "LayerNormalization", "Abs"]
    assert not where


@pytest.mark.parametrize("body", ["Gelu(x)", "LayerNormalization<axis=-1>(x, g, b)", "MatMul(x, w)", "Mul(x, c)"])
def test_rank_5_is_always_flattened(body: str) -> None:
    constants = {"g": normal(4), "b": normal(4), "w": normal(4, 4), "c": normal(1, 1, 1, 1, 4)}
    used = {name: array for name, array in constants.items() if f" {name}" in body}
    after, _ = _flattened(f"g (float[2,1,2,3,4] x) => (float[2,1,2,3,4] y) {{ y = {body} }}", **used)
    (node,) = [node for node in after.graph if node.op_type != "Reshape"]
    assert shape_of(node.outputs[0]) == (12, 4)


FACTOR = f"g (float[6,4] x) => (float[6,4] y) {SHAPES} {{ t = Reshape(x, tokens) a = Mul(t, c) y = Reshape(a, flat) }}"
CONSTANTS = {"scalar": (), "one": (1,), "channels": (4,), "padded": (1, 1, 4), "full": (2, 3, 4), "per row": (2, 3, 1)}


@pytest.mark.parametrize("case", CONSTANTS)
def test_constants_are_reshaped_too(case: str) -> None:
    after, _ = _flattened(FACTOR, c=normal(*CONSTANTS[case]))
    assert ops(after) == ["Mul"]


@pytest.mark.parametrize("shape", [(2, 1, 4), (3, 4), (3, 1)])
def test_constant_that_is_broadcast_along_some_row_axes_is_not_flattened(shape: tuple[int, ...]) -> None:
    after, where = _flattened(FACTOR, c=normal(*shape))
    assert ops(after) == ["Reshape", "Mul", "Reshape"]
    assert not where


def test_operands_with_other_row_axes_are_not_flattened() -> None:
    text = f"""g (float[6,4] x, float[1,3,4] z) => (float[6,4] y) {SHAPES}
        {{ t = Reshape(x, tokens) a = Add(t, z) y = Reshape(a, flat) }}"""
    after, _ = _flattened(text)
    assert ops(after) == ["Reshape", "Add", "Reshape"]
