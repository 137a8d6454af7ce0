"""Group normalization, as exporters write it, as LayerNormalization."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from dovetail.passes.group_norm_to_layer_norm import group_norm_to_layer_norm
from tests.equality import changed_by, model_from, normal, ops

EXPORTED = """g (float[2,6,4,5] x) => (float[2,6,4,5] y, float[2,3,40] z)
<int64[3] flat = {2,3,40}, int64[4] back = {2,6,4,5}>
{ a = Neg(x) f = Reshape(a, flat) n = InstanceNormalization<epsilon=0.001>(f, s, b) y = Reshape(n, back) z = Neg(f) }"""
ONES, ZEROS = np.ones(3, np.float32), np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("scale", "bias", "affine"),
    [(ONES, ZEROS, []), (normal(3), ZEROS, ["Mul"]), (normal(3), normal(3, seed=1), ["Mul", "Add"])],
)
def test_the_exported_form_with_a_second_consumer_of_the_reshaped_tensor(
    scale: np.ndarray, bias: np.ndarray, affine: list[str]
) -> None:
    after, record = changed_by(group_norm_to_layer_norm, model_from(EXPORTED, s=scale, b=bias))
    assert [op for op in ops(after) if op != "Neg"] == ["Reshape", "LayerNormalization", *affine, "Reshape"]
    assert [site.where for site in record.changed] == ["n"]


def test_one_that_the_target_computes_correctly_is_not_changed() -> None:
    _, record = changed_by(
        partial(group_norm_to_layer_norm, applies=lambda node: False), model_from(EXPORTED, s=ONES, b=ZEROS)
    )
    assert not record.changed


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,3,4] x) => (float[2,3,4] y) { y = InstanceNormalization(x, s, b) }",  # normalizes single channels
        "g (float[2,6,4] x, float[3] t) => (float[2,3,8] y) <int64[3] flat = {2,3,8}>"
        "{ f = Reshape(x, flat) y = InstanceNormalization(f, t, b) }",  # a scale that is not constant
    ],
)
def test_other_normalizations_are_not_changed(text: str) -> None:
    _, record = changed_by(group_norm_to_layer_norm, model_from(text, s=normal(3), b=normal(3, seed=1)))
    assert not record.changed
