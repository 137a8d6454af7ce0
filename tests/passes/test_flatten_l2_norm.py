"""LpNormalization along the last axis, of a matrix."""

from __future__ import annotations

import pytest

from dovetail.model.edit import shape_of
from dovetail.passes.flatten_l2_norm import flatten_l2_norm
from tests.equality import changed_by, model_from, ops


def text(attributes: str, shape: str = "2,3,4") -> str:
    return f"""g (float[{shape}] x) => (float[{shape}] y, float[{shape}] z)
    {{ a = Neg(x)  z = Relu(a)  n = LpNormalization{attributes}(a)  y = Neg(n) }}"""


@pytest.mark.parametrize("attributes", ["", "<axis = 2>", "<axis = -1, p = 1>"])
def test_the_input_becomes_a_matrix_with_a_second_consumer_of_it(attributes: str) -> None:
    after, record = changed_by(flatten_l2_norm, model_from(text(attributes)))
    node = next(node for node in after.graph if node.op_type == "LpNormalization")
    assert shape_of(node.inputs[0]) == (6, 4)
    assert node.attributes["axis"].value == 1
    relu = next(node for node in after.graph if node.op_type == "Relu")
    assert shape_of(relu.inputs[0]) == (2, 3, 4)
    assert [site.where for site in record.changed] == ["n"]


@pytest.mark.parametrize(("attributes", "shape"), [("<axis = 1>", "2,3,4"), ("", "3,4")])
def test_other_axes_and_matrices_are_not_changed(attributes: str, shape: str) -> None:
    model = model_from(text(attributes, shape))
    before = ops(model)
    assert not flatten_l2_norm(model).changed
    assert ops(model) == before
