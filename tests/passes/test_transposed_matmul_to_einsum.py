"""MatMul with a transposed second operand becomes an Einsum that reads it untransposed."""

from __future__ import annotations

import pytest

from dovetail.model.layout import perm_of
from dovetail.passes.transposed_matmul_to_einsum import transposed_matmul_to_einsum
from tests.equality import changed_by, model_from, ops


def test_attention_scores_become_one_einsum() -> None:
    text = """g (float[2,5,3,4] q, float[2,7,3,4] k) => (float[2,3,5,7] s)
        { h = Transpose<perm=[0,2,1,3]>(q)  t = Transpose<perm=[0,2,3,1]>(k)  [scores] s = MatMul(h, t) }"""
    after, record = changed_by(transposed_matmul_to_einsum, model_from(text))
    assert ops(after) == ["Transpose", "Transpose", "Einsum"]
    assert [perm_of(node) for node in after.graph if node.op_type == "Transpose"] == [(0, 2, 1, 3)] * 2
    assert [site.where for site in record.changed] == ["scores"]


@pytest.mark.parametrize("batch", [1, 3])
def test_transpose_of_the_last_two_axes_disappears(batch: int) -> None:
    text = f"""g (float[{batch},5,4] q, float[{batch},7,4] k) => (float[{batch},5,7] s)
        {{ t = Transpose<perm=[0,2,1]>(k)  s = MatMul(q, t) }}"""
    assert ops(changed_by(transposed_matmul_to_einsum, model_from(text))[0]) == ["Einsum"]


def test_another_consumer_still_gets_the_transposed_tensor() -> None:
    text = """g (float[1,3,5,4] q, float[1,3,7,4] k) => (float[1,3,5,7] s, float[1,3,4,7] y)
        { t = Transpose<perm=[0,1,3,2]>(k)  s = MatMul(q, t)  y = Relu(t) }"""
    assert ops(changed_by(transposed_matmul_to_einsum, model_from(text))[0]) == ["Transpose", "Einsum", "Relu"]


@pytest.mark.parametrize(
    ("inputs", "perm", "output", "reason"),
    [
        ("float[5,4] q, float[7,4] k", "[1,0]", "5,7", "do not have the same batch axes, or their rank is not 3 or 4"),
        (
            "float[2,3,5,4] q, float[3,7,4] k",
            "[0,2,1]",
            "2,3,5,7",
            "do not have the same batch axes, or their rank is not 3 or 4",
        ),
        (
            "float[2,3,5,4] q, float[1,3,7,4] k",
            "[0,1,3,2]",
            "2,3,5,7",
            "do not have the same batch axes, or their rank is not 3 or 4",
        ),
        (
            "float[2,3,5,4] q, float[2,4,3,7] k",
            "[0,2,1,3]",
            "2,3,5,7",
            "the summed axis is not the last axis before the Transpose",
        ),
    ],
)
def test_other_matmuls_are_declined(inputs: str, perm: str, output: str, reason: str) -> None:
    text = f"g ({inputs}) => (float[{output}] s) {{ t = Transpose<perm={perm}>(k)  [scores] s = MatMul(q, t) }}"
    after, record = changed_by(transposed_matmul_to_einsum, model_from(text))
    assert ops(after) == ["Transpose", "MatMul"]
    assert not record.changed
    assert [site.where for site in record.declined] == ["scores"]
    assert reason in record.declined[0].what
