from __future__ import annotations

import pytest

from dovetail.passes.split_linear import split_linear
from tests.equality import changed_by, model_from, normal, ops

WHOLE = "<int64[3] sizes = {2, 4, 6}, int64[3] wide = {2, 3, 12}>"


def test_a_fused_projection_becomes_one_layer_per_part() -> None:
    text = f"""g (float[6,5] x) => (float[2,3,2] q, float[2,3,4] k, float[2,3,6] v) {WHOLE}
        {{ h = Gemm(x, w, b) r = Reshape(h, wide) q, k, v = Split<axis=-1>(r, sizes) }}"""
    after, record = changed_by(split_linear, model_from(text, w=normal(5, 12), b=normal(12, seed=1)))
    assert ops(after) == ["Gemm", "Reshape"] * 3
    assert record.changed[0].what == "3 layers in place of one"


def test_a_transposed_weight_is_cut_along_its_rows() -> None:
    text = f"""g (float[6,5] x) => (float[6,2] q, float[6,4] k, float[6,6] v) {WHOLE}
        {{ h = Gemm<transB=1>(x, w, b) q, k, v = Split<axis=1>(h, sizes) }}"""
    after, _ = changed_by(split_linear, model_from(text, w=normal(12, 5), b=normal(12, seed=1)))
    assert ops(after) == ["Gemm"] * 3


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("h = Gemm(x, w, b) z = Relu(h) q, k, v = Split<axis=-1>(h, sizes)", "the whole is read elsewhere too"),
        ("h = Gemm(x, w, b) z = Relu(h) q, k, v = Split<axis=-1>(z, sizes)", "does not come from a linear layer"),
    ],
)
def test_what_others_read_stays_whole(body: str, why: str) -> None:
    text = f"g (float[6,5] x) => (float[6,2] q, float[6,4] k, float[6,6] v, float[6,12] z) {WHOLE} {{ {body} }}"
    after, record = changed_by(split_linear, model_from(text, w=normal(5, 12), b=normal(12, seed=1)))
    assert "Split" in ops(after)
    assert why in record.declined[0].what


def test_rows_are_not_cut() -> None:
    text = """g (float[6,5] x) => (float[3,4] a, float[3,4] b)
        { h = MatMul(x, w) a, b = Split<axis=0, num_outputs=2>(h) }"""
    _, record = changed_by(split_linear, model_from(text, w=normal(5, 4)))
    assert record.declined[0].what == "it does not cut the last axis"
