"""Normalized vectors that are zero because of padding are multiplied by zero."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.model.edit import constant_of
from dovetail.model.known_zeros import live_elements
from dovetail.passes.mask_zero_vectors import mask_zero_vectors
from tests.equality import Array, changed_by, model_from, normal, ops

PADDED = "p = Pad(x, pads)"


def tokens(nodes: str, shape: str = "1,6,8") -> ir.Model:
    """Four tokens, padded by one before and one after them; ``p`` has a second consumer."""
    text = f"""g (float[1,4,8] x) => (float[{shape}] y, float[1,6,8] z)
        <int64[6] pads = {{0,1,0,0,1,0}}, int64[2] flat = {{6,8}}, int64[4] heads = {{1,6,2,4}},
         int64[3] back = {{1,6,8}}, int64[1] last = {{-1}}, float e = {{1e-12}}>
        {{ {PADDED} z = Neg(p) {nodes} }}"""
    return model_from(text, w=normal(8, 8), b=normal(8), wide=normal(1, 6, 8))


def mask_of(nodes: str, shape: str = "1,6,8") -> Array:
    after, record = changed_by(mask_zero_vectors, tokens(nodes, shape))
    assert len(record.changed) == 1
    (mul,) = [node for node in after.graph if node.op_type == "Mul" and node.inputs[0].producer() is not None]
    mask = constant_of(mul.inputs[1])
    assert mask is not None
    return mask


@pytest.mark.parametrize(
    "nodes",
    [
        "h = MatMul(p, w) y = LpNormalization(h)",
        "f = Reshape(p, flat) h = Gemm(f, w) r = Reshape(h, back) y = LpNormalization(r)",
        "h = MatMul(p, w) n = ReduceL2(h, last) c = Max(n, e) y = Div(h, c)",
        "a = Relu(p) c = Add(a, p) h = MatMul(c, w) y = LpNormalization(h)",
    ],
)
def test_the_padding_is_masked_and_nothing_else(nodes: str) -> None:
    assert mask_of(nodes).reshape(-1).tolist() == [0, 1, 1, 1, 1, 0]


def test_the_padding_is_followed_through_the_heads_of_attention() -> None:
    mask = mask_of(
        "h = MatMul(p, w) r = Reshape(h, heads) t = Transpose<perm=[0,2,1,3]>(r) y = LpNormalization(t)", "1,2,6,4"
    )
    assert mask.shape == (1, 2, 6, 1)
    assert mask.reshape(2, 6).tolist() == [[0, 1, 1, 1, 1, 0]] * 2


@pytest.mark.parametrize(
    "nodes",
    [
        "f = Reshape(p, flat) h = Gemm(f, w, b) r = Reshape(h, back) y = LpNormalization(r)",  # a bias
        "c = Add(p, wide) h = MatMul(c, w) y = LpNormalization(h)",  # a position embedding
        "h = MatMul(p, w) s = Exp(h) y = LpNormalization(s)",
        "h = MatMul(p, w) y = LpNormalization<axis=1>(h)",  # along the tokens, of which some are not padding
        "h = MatMul(p, w) y = Neg(h)",
    ],
)
def test_vectors_that_may_be_other_than_zero_are_left_alone(nodes: str) -> None:
    after, record = changed_by(mask_zero_vectors, tokens(nodes))
    assert not record.changed
    assert ops(after) == ops(tokens(nodes))


def test_it_is_not_applied_twice() -> None:
    model = tokens("h = MatMul(p, w) y = LpNormalization(h)")
    assert len(mask_zero_vectors(model).changed) == 1
    assert not mask_zero_vectors(model).changed


@pytest.mark.parametrize(
    ("mode", "value", "zeros"), [("constant", "", 2), ("constant", ", e", 0), ("edge", "", 0), ("reflect", "", 0)]
)
def test_only_padding_with_zeros_is_known_to_be_zero(mode: str, value: str, zeros: int) -> None:
    text = f"""g (float[4] x) => (float[6] y) <int64[2] pads = {{1,1}}, float e = {{1e-12}}>
        {{ y = Pad<mode="{mode}">(x, pads{value}) }}"""
    live = live_elements(model_from(text).graph)
    assert sum(int((~array).sum()) for array in live.values()) == zeros
    assert np.all([array.shape == (6,) for array in live.values()])
