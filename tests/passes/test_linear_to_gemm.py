from __future__ import annotations

import pytest

from dovetail.passes.linear_to_gemm import linear_to_gemm
from tests.equality import changed_by, model_from, normal, ops

ARRAYS = {"w": normal(4, 3), "b": normal(3, seed=1)}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("5,4", ["Gemm"]),
        ("2,5,4", ["Reshape", "Gemm", "Reshape"]),
        ("2,5,6,4", ["Reshape", "Gemm", "Reshape"]),
    ],
)
@pytest.mark.parametrize("bias", ["Add(m, b)", "Add(b, m)"])
def test_matmul_and_bias_become_one_gemm(shape: str, expected: list[str], bias: str) -> None:
    text = f"g (float[{shape}] x) => (float[{shape[:-1]}3] y) {{ m = MatMul(x, w) y = {bias} }}"
    after, record = changed_by(linear_to_gemm, model_from(text, **ARRAYS))
    assert ops(after) == expected
    assert len(record.changed) == 1


def test_layers_on_one_input_share_its_reshape() -> None:
    text = """g (float[2,5,4] x) => (float[2,5,3] y, float[2,5,3] z)
        { m = MatMul(x, w) y = Add(m, b) n = MatMul(x, w) z = Add(n, b) }"""
    after, _ = changed_by(linear_to_gemm, model_from(text, **ARRAYS))
    assert sorted(ops(after)) == ["Gemm", "Gemm", "Reshape", "Reshape", "Reshape"]


def test_other_consumers_of_the_input_and_output_are_not_changed() -> None:
    text = """g (float[2,5,4] x) => (float[2,5,3] y, float[2,5,3] z, float[2,5,4] u)
        { m = MatMul(x, w) y = Add(m, b) z = Neg(y) u = Abs(x) }"""
    after, record = changed_by(linear_to_gemm, model_from(text, **ARRAYS))
    assert "Gemm" in ops(after)
    assert len(record.changed) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("m = MatMul(x, w) y = Add(m, b) z = Neg(m)", "a bias Add is not its only consumer"),
        ("m = MatMul(x, w) y = Sub(m, b) z = Neg(y)", "a bias Add is not its only consumer"),
        ("m = MatMul(x, w) r = Relu(m) y = Add(m, r) z = Neg(y)", "a bias Add is not its only consumer"),
        ("m = MatMul(x, w) y = Add(m, whole) z = Neg(y)", "not one constant per output channel"),
    ],
)
def test_matmul_without_a_bias_is_declined(body: str, reason: str) -> None:
    text = f"g (float[2,5,4] x) => (float[2,5,3] y, float[2,5,3] z) {{ {body} }}"
    after, record = changed_by(linear_to_gemm, model_from(text, **ARRAYS, whole=normal(5, 3, seed=2)))
    assert "Gemm" not in ops(after)
    assert reason in record.declined[0].what
