"""Constant factors after linear layers are folded into them."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.passes.fold_scale import fold_scale
from tests.equality import changed_by, model_from, normal, ops, run

SHAPES = "<int64[3] tokens = {2,3,8}, int64[4] heads = {2,3,2,4}, int64[3] thirds = {2,2,4}, float half = {0.3}>"
FOLDED = {
    "layer scale": ("y = Mul(r, c)", ["Gemm", "Reshape"]),
    "scalar": ("y = Mul(r, half)", ["Gemm", "Reshape"]),
    "scale of the queries": (
        "h = Reshape(r, heads) t = Transpose<perm=[0,2,1,3]>(h) y = Mul(t, half)",
        ["Gemm", "Reshape", "Reshape", "Transpose"],
    ),
    "channels kept last": ("t = Transpose<perm=[1,0,2]>(r) y = Mul(t, c)", ["Gemm", "Reshape", "Transpose"]),
}


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("case", FOLDED)
def test_factor_is_folded_into_weight_and_bias(case: str, transposed: int) -> None:
    body, remaining = FOLDED[case]
    text = f"""g (float[6,5] x) => (float y) {SHAPES}
        {{ l = Gemm<transB={transposed}>(x, w, b) r = Reshape(l, tokens) {body} }}"""
    weight = normal(8, 5) if transposed else normal(5, 8)
    after, record = changed_by(fold_scale, model_from(text, w=weight, b=normal(8), c=normal(1, 1, 8)))
    assert ops(after) == remaining
    assert [site.where for site in record.changed] == ["y"]


def test_factor_of_one_part_of_a_fused_projection_does_not_change_the_others() -> None:
    text = f"""g (float[2,3,5] x) => (float q, float k, float v) {SHAPES}
        {{ l = MatMul(x, w) a, k, c = Split<axis=-1>(l, thirds) t = Transpose<perm=[0,2,1]>(a) q = Mul(t, half)
           v = Neg(c) }}"""
    after, _ = changed_by(fold_scale, model_from(text, w=normal(5, 8)))
    assert ops(after) == ["MatMul", "Split", "Transpose", "Neg"]


DECLINED = {
    "another consumer of the layer": "l = Gemm(x, w, b) z = Neg(l) y = Mul(l, half)",
    "another consumer in between": "l = Gemm(x, w, b) r = Reshape(l, tokens) z = Neg(r) y = Mul(r, half)",
    "channels not last": "l = Gemm(x, w, b) z = Transpose(x) t = Transpose(l) y = Mul(t, six)",
    "heads": "l = Gemm(x, w, b) z = Neg(x) h = Reshape(l, heads) y = Mul(h, four)",
    "per token": "l = Gemm(x, w, b) z = Neg(x) y = Mul(l, rows)",
    "broadcast": "l = Gemm(x, w, b) z = Neg(x) y = Mul(l, more)",
    "an activation": "l = Relu(x) z = Neg(x) y = Mul(l, half)",
    "a weight that is not constant": "z = Transpose(x) l = MatMul(x, z) y = Mul(l, half)",
}


@pytest.mark.parametrize("case", DECLINED)
def test_factor_that_cannot_be_folded_is_declined(case: str) -> None:
    constants = {"w": normal(5, 8), "b": normal(8), "six": normal(6), "four": normal(4), "rows": normal(6, 1)}
    constants["more"] = normal(3, 1, 1)
    model = model_from(f"g (float[6,5] x) => (float y, float z) {SHAPES} {{ {DECLINED[case]} }}", **constants)
    after, record = changed_by(fold_scale, model)
    assert ops(after) == ops(model)
    assert record.declined[0].where == "y"


def test_weight_shared_by_two_layers_is_scaled_for_one() -> None:
    text = f"g (float[6,5] x) => (float y, float z) {SHAPES} {{ l = MatMul(x, w) y = Mul(l, half) z = MatMul(x, w) }}"
    model = model_from(text, w=normal(5, 8))
    after, _ = changed_by(fold_scale, model)
    outputs = run(after, {"x": np.eye(6, 5, dtype=np.float32)})
    np.testing.assert_allclose(outputs["y"], 0.3 * outputs["z"], rtol=1e-6)
