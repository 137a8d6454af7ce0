"""Layer normalization over several axes."""

from __future__ import annotations

import pytest

from dovetail.passes.layer_norm_last_axis import layer_norm_last_axis
from tests.equality import changed_by, model_from, normal, ops

BODY = "g (float[2,3,4,5] x) => (float[2,3,4,5] y) { n = LayerNormalization<axis=AXIS>(x, g, b) y = Neg(n) }"


@pytest.mark.parametrize(("axis", "shape"), [(-2, (4, 5)), (2, (4, 5)), (-3, (3, 4, 5)), (-4, (2, 3, 4, 5))])
def test_several_axes_are_normalized_as_one(axis: int, shape: tuple[int, ...]) -> None:
    model = model_from(BODY.replace("AXIS", str(axis)), g=normal(*shape), b=normal(*shape, seed=1))
    after, record = changed_by(layer_norm_last_axis, model)
    assert ops(after) == ["Reshape", "LayerNormalization", "Reshape", "Neg"]
    assert after.graph.node(1).attributes["axis"].value == -1
    assert [site.where for site in record.changed] == ["n"]


def test_second_consumer_of_the_input_still_gets_its_shape() -> None:
    text = """g (float[2,3,4] x) => (float[2,3,4] y, float[2,4,3] z)
        { a = Neg(x) y = LayerNormalization<axis=-2>(a, g, b) z = Transpose<perm=[0,2,1]>(a) }"""
    after, _ = changed_by(layer_norm_last_axis, model_from(text, g=normal(3, 4), b=normal(3, 4, seed=1)))
    assert sorted(ops(after)) == ["LayerNormalization", "Neg", "Reshape", "Reshape", "Transpose"]


@pytest.mark.parametrize("axis", [-1, 3])
def test_last_axis_is_not_changed(axis: int) -> None:
    model = model_from(BODY.replace("AXIS", str(axis)), g=normal(5), b=normal(5, seed=1))
    _, record = changed_by(layer_norm_last_axis, model)
    assert not record.changed


def test_scale_that_is_not_constant_is_declined() -> None:
    text = "g (float[2,3,4] x, float[3,4] g) => (float[2,3,4] y) { y = LayerNormalization<axis=-2>(x, g) }"
    after, record = changed_by(layer_norm_last_axis, model_from(text))
    assert ops(after) == ["LayerNormalization"]
    assert record.declined[0].where == "y"
