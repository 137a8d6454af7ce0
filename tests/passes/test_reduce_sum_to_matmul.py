from __future__ import annotations

import pytest

from dovetail.passes.reduce_sum_to_matmul import reduce_sum_to_matmul
from tests.equality import changed_by, model_from, ops

CONSTANTS = "<int64[1] last = {-1}, int64[1] third = {2}, int64[1] first = {0}, int64[2] both = {1, 2}>"


@pytest.mark.parametrize(
    ("body", "shape", "expected"),
    [
        ("y = ReduceSum<keepdims=0>(a, last)", "2,3", ["Relu", "Reshape", "MatMul", "Reshape"]),
        ("y = ReduceSum(a, third)", "2,3,1", ["Relu", "Reshape", "MatMul", "Reshape"]),
    ],
)
def test_sum_over_the_last_axis_becomes_a_matmul(body: str, shape: str, expected: list[str]) -> None:
    text = f"g (float[2,3,4] x) => (float[{shape}] y) {CONSTANTS} {{ a = Relu(x) {body} }}"
    after, record = changed_by(reduce_sum_to_matmul, model_from(text))
    assert ops(after) == expected
    assert record.changed[0].where == "y"


def test_matrix_needs_no_reshape() -> None:
    text = f"g (float[3,4] x) => (float[3,1] y) {CONSTANTS} {{ a = Relu(x) y = ReduceSum(a, last) }}"
    after, _ = changed_by(reduce_sum_to_matmul, model_from(text))
    assert ops(after) == ["Relu", "MatMul"]


def test_other_consumers_are_not_changed() -> None:
    text = f"""g (float[2,3,4] x) => (float[2,3] y, float[2,3,4] z, float[2,3] w) {CONSTANTS}
        {{ a = Relu(x) y = ReduceSum<keepdims=0>(a, last) z = Neg(a) w = Abs(y) }}"""
    after, _ = changed_by(reduce_sum_to_matmul, model_from(text))
    assert sorted(ops(after)) == ["Abs", "MatMul", "Neg", "Relu", "Reshape", "Reshape"]


@pytest.mark.parametrize(
    ("inputs", "body", "shape"),
    [
        ("float[2,3,4] x", "y = ReduceSum<keepdims=0>(x, first)", "float[3,4]"),
        ("float[2,3,4] x", "y = ReduceSum<keepdims=0>(x, both)", "float[2]"),
        ("float[2,3,4] x", "y = ReduceSum<keepdims=0>(x)", "float"),
        ("float[4] x", "y = ReduceSum(x, first)", "float[1]"),
    ],
)
def test_other_axes_are_declined(inputs: str, body: str, shape: str) -> None:
    text = f"g ({inputs}) => ({shape} y) {CONSTANTS} {{ {body} }}"
    after, record = changed_by(reduce_sum_to_matmul, model_from(text))
    assert ops(after) == ["ReduceSum"]
    assert [site.where for site in record.declined] == ["y"]


def test_integers_are_ignored() -> None:
    text = f"g (int64[2,3] x) => (int64[2] y) {CONSTANTS} {{ y = ReduceSum<keepdims=0>(x, last) }}"
    after, record = changed_by(reduce_sum_to_matmul, model_from(text))
    assert ops(after) == ["ReduceSum"]
    assert not record.declined
