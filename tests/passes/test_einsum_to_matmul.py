"""Einsum as MatMul: any equation of two operands without a diagonal, with the fewest Transposes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.model.attention import find_attention
from dovetail.model.origin import nodes_of
from dovetail.passes.einsum_to_matmul import einsum_to_matmul
from dovetail.passes.normalize import normalize
from tests.equality import assert_equal, changed_by, model_from, normal, ops

SIZES = {"b": 2, "h": 3, "w": 4, "c": 5, "k": 6, "q": 7, "d": 8}
EQUATIONS = {
    # decomposed relative positions (SAM): one table for all samples
    "bhwc,hkc->bhwk": ["Transpose", "MatMul"],
    "bhwc,wkc->bhwk": ["Transpose", "Transpose", "MatMul", "Transpose"],
    # attention with the heads after the tokens
    "bqhd,bkhd->bhqk": ["Transpose", "Transpose", "MatMul"],
    "bhqk,bkhd->bqhd": ["Transpose", "MatMul", "Transpose"],
    # masks from queries, with the operands in either order
    "bqc,bchw->bqhw": ["Reshape", "MatMul", "Reshape"],
    "bchw,bqc->bqhw": ["Reshape", "MatMul", "Reshape"],
    # one matrix for all samples
    "bhwc,ck->bhwk": ["MatMul"],
    "bchw,kc->bkhw": None,
    # adjacent row axes, several summed axes
    "bhwc,bkc->bhwk": ["Reshape", "Transpose", "MatMul", "Reshape"],
    "bhwc,khwc->bk": None,
    # no rows, no columns, nothing summed, a sum in one operand alone, everything summed
    "bc,bck->bk": None,
    "bkc,bc->bk": None,
    "bc,bc->b": None,
    "b,h->bh": None,
    "bhw,bw->hbw": None,
    "bch,bk->bk": None,
    "bc,bc->": None,
    "bc,ck": None,
    " b q c , b k c -> b q k ": ["Transpose", "MatMul"],
    "...qc,...ck->...qk": ["MatMul"],
    "c...,ck->k...": None,
}


def einsum(equation: str) -> ir.Model:
    """A model of one Einsum whose ellipses stand for the axes b and h."""
    terms, _, result = equation.replace(" ", "").replace("...", "bh").partition("->")
    if "->" not in equation:
        result = "".join(sorted(axis for axis in terms if axis.isalpha() and terms.count(axis) == 1))
    first, second, shape = (",".join(str(SIZES[axis]) for axis in term) for term in (*terms.split(","), result))
    node = f'y = Einsum <equation = "{equation}"> (x, z)'
    return model_from(f"g (float[{first}] x, float[{second}] z) => (float[{shape}] y) {{ {node} }}")


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_of_two_operands_is_rewritten(equation: str) -> None:
    after, record = changed_by(einsum_to_matmul, einsum(equation))
    assert len(record.changed) == 1
    assert "Einsum" not in ops(after)
    expected = EQUATIONS[equation]
    assert expected is None or sorted(ops(after)) == sorted(expected)
    assert all("Einsum_0" in nodes_of(node) for node in after.graph)


def test_constant_becomes_the_second_operand_and_its_layout_is_folded() -> None:
    text = """g (float[2,5,3,4] x) => (float[2,6,3,4] y) { y = Einsum <equation = "kc,bchw->bkhw"> (t, x) }"""
    model = model_from(text, t=normal(6, 5))
    after, _ = normalize(model)
    assert_equal(model, after)
    (matmul,) = [node for node in after.graph if node.op_type == "MatMul"]
    assert matmul.inputs[1] is not None
    assert matmul.inputs[1].const_value is not None
    assert matmul.inputs[1].const_value.shape.numpy() == (5, 6)


def test_other_consumers_of_the_operands_are_not_changed() -> None:
    text = """g (float[2,7,3,8] q, float[2,6,3,8] k)
    => (float[2,3,7,6] s, float[2,7,3,8] r, float[2,6,3,8] t, float[2,3,7,6] u)
    { x = Relu(q)  z = Relu(k)  r = Neg(x)  t = Neg(z)
      s = Einsum <equation = "bqhd,bkhd->bhqk"> (x, z)  u = Neg(s) }"""
    after, record = changed_by(einsum_to_matmul, model_from(text))
    assert len(record.changed) == 1
    assert "Einsum" not in ops(after)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            """g (float[3,3] x, float[3] z) => (float[3] y) { y = Einsum <equation = "ii,i->i"> (x, z) }""",
            "the Einsum repeats an axis within one operand (a diagonal)",
        ),
        (
            """g (float[2,3] x, float[1,4] z) => (float[2,3,4] y) { y = Einsum <equation = "bi,bj->bij"> (x, z) }""",
            "the Einsum broadcasts an axis of size 1",
        ),
        (
            """g (float[2,3] x) => (float[3,2] y) { y = Einsum <equation = "ij->ji"> (x) }""",
            "the equation has 1 operands and the Einsum 1 inputs, but both must be 2",
        ),
    ],
)
def test_unsupported_equation_is_declined(text: str, reason: str) -> None:
    after, record = changed_by(einsum_to_matmul, model_from(text))
    assert ops(after) == ["Einsum"]
    assert [site.what for site in record.declined] == [reason]


def test_unknown_shapes_are_declined() -> None:
    text = """g (float[N,3] x, float[3,4] z) => (float[N,4] y) { y = Einsum <equation = "ni,ij->nj"> (x, z) }"""
    record = einsum_to_matmul(model_from(text))
    assert [site.what for site in record.declined] == ["the shape of an operand is unknown"]


def test_attention_written_with_einsum_is_found() -> None:
    text = """g (float[2,7,3,8] q, float[2,6,3,8] k, float[2,6,3,8] v) => (float[2,7,3,8] y)
    { s = Einsum <equation = "bqhd,bkhd->bhqk"> (q, k)  m = Mul(s, scale)  p = Softmax <axis = -1> (m)
      y = Einsum <equation = "bhqk,bkhd->bqhd"> (p, v) }"""
    model = model_from(text, scale=np.array(8**-0.5, np.float32))
    after, _ = normalize(model)
    assert_equal(model, after)
    assert len(find_attention(after.graph)) == 1
