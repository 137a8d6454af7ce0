"""A linear layer that is only cut apart, as one layer per part."""

from __future__ import annotations

import pytest

from dovetail.passes.split_linear import split_linear
from tests.equality import changed_by, model_from, normal, ops

FUSED = """g (float[1,5,8] x) => (float[1,5,4] a, float[1,5,4] b, float[1,5,8] c) <int64[3] sizes = {4,4,8}>
{ m = MatMul(x, w) s = Add(m, bias) a, b, c = Split<axis = -1>(s, sizes) }"""
SECOND = """g (float[1,5,8] x) => (float[1,5,8] a, float[1,5,8] b, float[1,5,16] whole) <int64[2] sizes = {8,8}>
{ m = MatMul(x, w) s = Add(m, bias) a, b = Split<axis = 2>(s, sizes) whole = Relu(s) }"""
ROWS = """g (float[1,4,8] x) => (float[1,2,16] a, float[1,2,16] b) <int64[2] sizes = {2,2}>
{ m = MatMul(x, w) s = Add(m, bias) a, b = Split<axis = 1>(s, sizes) }"""
PER_TOKEN = """g (float[1,5,8] x) => (float[1,5,8] a, float[1,5,8] b) <int64[2] sizes = {8,8}>
{ m = MatMul(x, w) s = Add(m, table) a, b = Split<axis = 2>(s, sizes) }"""
TIED = """g (float[1,5,8] x, float[1,3,8] z) => (float[1,5,8] a, float[1,5,8] b, float[1,3,16] y)
<int64[2] sizes = {8,8}>
{ m = MatMul(x, w) s = Add(m, bias) a, b = Split<axis = 2>(s, sizes) y = MatMul(z, w) }"""


def test_every_part_is_a_layer_of_its_own() -> None:
    model, record = changed_by(split_linear, model_from(FUSED, w=normal(8, 16), bias=normal(16)))
    assert ops(model) == ["MatMul", "Add"] * 3
    assert [site.where for site in record.changed] == ["m"]
    assert [value.name for value in model.graph.outputs] == ["a", "b", "c"]


def test_without_a_bias() -> None:
    text = FUSED.replace("s = Add(m, bias) ", "").replace("(s, sizes)", "(m, sizes)")
    model, record = changed_by(split_linear, model_from(text, w=normal(8, 16)))
    assert ops(model) == ["MatMul"] * 3
    assert record.declined == ()


def test_a_weight_with_a_second_reader_stays_whole_for_it() -> None:
    model, record = changed_by(split_linear, model_from(TIED, w=normal(8, 16), bias=normal(16)))
    assert len(record.changed) == 1
    other = next(node for node in model.graph if node.outputs[0].name == "y")
    assert other.inputs[1] is not None
    assert other.inputs[1].name == "w"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SECOND, "something else reads it whole"),
        (ROWS, "it is not cut along its last axis"),
        (PER_TOKEN, "what is added is not one number per output"),
    ],
    ids=["second reader", "rows", "table"],
)
def test_declined(text: str, reason: str) -> None:
    given = model_from(
        text, w=normal(8, 16), **({"table": normal(5, 16)} if text is PER_TOKEN else {"bias": normal(16)})
    )
    model, record = changed_by(split_linear, given)
    assert [site.what for site in record.declined] == [reason]
    assert ops(model) == ops(given)
