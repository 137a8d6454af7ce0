"""MatMul with a broadcast second operand: the broadcast axes become rows if the first operand is a Reshape."""

from __future__ import annotations

import pytest

from dovetail.passes.unbroadcast_matmul import unbroadcast_matmul
from tests.equality import changed_by, model_from, normal, ops

RESHAPE = "r = Reshape(x, s)"


def matmul_text(second: str, *, first: str = "2,3,4,5", result: str = "2,3,4,6", body: str = RESHAPE) -> str:
    """The text of a MatMul of a reshaped tensor with another one."""
    return f"""g (float[120] x, float[{second}] z) => (float[{result}] y)
    <int64[{first.count(",") + 1}] s = {{{first}}}> {{ {body}  y = MatMul(r, z) }}"""


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ("3,5,6", ["Reshape", "Transpose", "Reshape", "MatMul", "Reshape", "Transpose"]),
        ("1,3,5,6", ["Reshape", "Transpose", "Reshape", "Reshape", "MatMul", "Reshape", "Transpose"]),
        ("2,1,5,6", ["Reshape", "Reshape", "Reshape", "MatMul", "Reshape"]),
        ("5,6", ["Reshape", "Reshape", "MatMul", "Reshape"]),
        ("1,1,5,6", ["Reshape", "Reshape", "Reshape", "MatMul", "Reshape"]),
    ],
)
def test_broadcast_axes_become_rows(second: str, expected: list[str]) -> None:
    after, record = changed_by(unbroadcast_matmul, model_from(matmul_text(second)))
    assert len(record.changed) == 1
    assert ops(after) == expected
    (matmul,) = [node for node in after.graph if node.op_type == "MatMul"]
    shapes = [value.shape.numpy() for value in matmul.inputs if value is not None and value.shape is not None]
    assert shapes[0][:-2] == shapes[1][:-2]


def test_other_consumers_are_not_changed() -> None:
    text = """g (float[120] x, float[3,5,6] z) => (float[2,3,4,6] y, float[2,3,4,5] t, float[3,5,6] u, float[2,3,4,6] v)
    <int64[4] s = {2, 3, 4, 5}> { r = Reshape(x, s)  y = MatMul(r, z)  t = Neg(r)  u = Neg(z)  v = Neg(y) }"""
    _, record = changed_by(unbroadcast_matmul, model_from(text))
    assert len(record.changed) == 1


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(matmul_text("2,3,5,6"), id="nothing is broadcast"),
        pytest.param(
            matmul_text("3,5,6", body=f"{RESHAPE.replace('r =', 'q =')}  r = Relu(q)"), id="no Reshape in front"
        ),
    ],
)
def test_correct_matmul_stays(text: str) -> None:
    after, record = changed_by(unbroadcast_matmul, model_from(text))
    assert record.changed == record.declined == ()
    assert "Transpose" not in ops(after)


def test_linear_layer_stays() -> None:
    text = """g (float[120] x) => (float[2,3,4,6] y) <int64[4] s = {2, 3, 4, 5}>
    { r = Reshape(x, s)  y = MatMul(r, w) }"""
    after, record = changed_by(unbroadcast_matmul, model_from(text, w=normal(5, 6)))
    assert record.changed == ()
    assert ops(after) == ["Reshape", "MatMul"]


def test_constant_is_reshaped_offline() -> None:
    text = """g (float[120] x) => (float[2,3,4,6] y) <int64[4] s = {2, 3, 4, 5}>
    { r = Reshape(x, s)  y = MatMul(r, w) }"""
    after, record = changed_by(unbroadcast_matmul, model_from(text, w=normal(1, 3, 5, 6)))
    assert len(record.changed) == 1
    assert ops(after) == ["Reshape", "Transpose", "Reshape", "MatMul", "Reshape", "Transpose"]


def test_matmul_in_which_both_operands_are_broadcast_is_declined() -> None:
    text = matmul_text("1,3,5,6", first="2,1,12,5", result="2,3,12,6")
    after, record = changed_by(unbroadcast_matmul, model_from(text))
    assert [site.what for site in record.declined] == ["the first operand is broadcast too"]
    assert ops(after) == ["Reshape", "MatMul"]
