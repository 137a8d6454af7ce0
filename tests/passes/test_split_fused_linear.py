"""A linear layer that is only split becomes one layer per part."""

from __future__ import annotations

import pytest

from dovetail.passes.split_fused_linear import split_fused_linear
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
WHOLE = "<int64[3] sizes = {2, 4, 6}, int64[3] wide = {2, 3, 12}>"


def test_fused_projection_becomes_one_layer_per_part() -> None:
    text = f"""g (float[6,5] x) => (float[2,3,2] q, float[2,3,4] k, float[2,3,6] v) {WHOLE}
        {{ h = Gemm(x, w, b) r = Reshape(h, wide) q, k, v = Split<axis=-1>(r, sizes) }}"""
    after, record = changed_by(split_fused_linear, model_from(text, w=normal(5, 12), b=normal(12, seed=1)))
    assert ops(after) == ["Gemm", "Reshape"] * 3
    assert record.changed[0].what == "linear layer split into 3"


def test_transposed_weight_is_split_along_its_rows() -> None:
    text = f"""g (float[6,5] x) => (float[6,2] q, float[6,4] k, float[6,6] v) {WHOLE}
        {{ h = Gemm<transB=1>(x, w, b) q, k, v = Split<axis=1>(h, sizes) }}"""
    after, _ = changed_by(split_fused_linear, model_from(text, w=normal(12, 5), b=normal(12, seed=1)))
    assert ops(after) == ["Gemm"] * 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "h = Gemm(x, w, b) z = Relu(h) q, k, v = Split<axis=-1>(h, sizes)",
            "the unsplit output is used elsewhere too",
        ),
        ("h = Gemm(x, w, b) z = Relu(h) q, k, v = Split<axis=-1>(z, sizes)", "does not come from a linear layer"),
    ],
)
def test_layer_with_other_consumers_is_declined(body: str, reason: str) -> None:
    text = f"g (float[6,5] x) => (float[6,2] q, float[6,4] k, float[6,6] v, float[6,12] z) {WHOLE} {{ {body} }}"
    after, record = changed_by(split_fused_linear, model_from(text, w=normal(5, 12), b=normal(12, seed=1)))
    assert "Split" in ops(after)
    assert reason in record.declined[0].what


def test_rows_are_not_split() -> None:
    text = """g (float[6,5] x) => (float[3,4] a, float[3,4] b)
        { h = MatMul(x, w) a, b = Split<axis=0, num_outputs=2>(h) }"""
    _, record = changed_by(split_fused_linear, model_from(text, w=normal(5, 4)))
    assert record.declined[0].what == "it does not split the last axis"


def test_every_part_has_its_own_layer() -> None:
    model, record = changed_by(split_fused_linear, model_from(FUSED, w=normal(8, 16), bias=normal(16)))
    assert ops(model) == ["MatMul", "Add"] * 3
    assert len(record.changed) == 1
    assert [value.name for value in model.graph.outputs] == ["a", "b", "c"]


def test_without_a_bias() -> None:
    text = FUSED.replace("s = Add(m, bias) ", "").replace("(s, sizes)", "(m, sizes)")
    model, record = changed_by(split_fused_linear, model_from(text, w=normal(8, 16)))
    assert ops(model) == ["MatMul"] * 3
    assert record.declined == ()


def test_weight_with_a_second_consumer_stays() -> None:
    model, record = changed_by(split_fused_linear, model_from(TIED, w=normal(8, 16), bias=normal(16)))
    assert len(record.changed) == 1
    consumer = next(node for node in model.graph if node.outputs[0].name == "y")
    assert consumer.inputs[1] is not None
    assert consumer.inputs[1].name == "w"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SECOND, "the unsplit output is used elsewhere too"),
        (ROWS, "it does not split the last axis"),
        (PER_TOKEN, "the added operand is not one constant per output"),
    ],
    ids=["second consumer", "rows", "table"],
)
def test_declined(text: str, reason: str) -> None:
    original = model_from(
        text, w=normal(8, 16), **({"table": normal(5, 16)} if text is PER_TOKEN else {"bias": normal(16)})
    )
    model, record = changed_by(split_fused_linear, original)
    assert [site.what for site in record.declined] == [reason]
    assert ops(model) == ops(original)
