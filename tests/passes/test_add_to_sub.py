from __future__ import annotations

import pytest

from dovetail.passes.add_to_sub import add_to_sub
from tests.equality import changed_by, model_from, normal, ops


@pytest.mark.parametrize("add", ["Add(x, k)", "Add(k, x)"])
def test_the_negative_of_a_constant_is_subtracted(add: str) -> None:
    text = f"g (float[2,4,3] x) => (float[2,4,3] y, float[4,3] z) {{ y = {add} z = Neg(k) }}"
    after, record = changed_by(add_to_sub, model_from(text, k=normal(4, 3)))
    assert len(record.changed) == 1
    assert sorted(ops(after)) == ["Neg", "Sub"]


def test_two_consumers_of_a_sum_read_the_difference() -> None:
    text = "g (float[2,4] x) => (float[2,4] y, float[2,4] z) { a = Add(x, k) y = Neg(a) z = Relu(a) }"
    after, _ = changed_by(add_to_sub, model_from(text, k=normal(4)))
    assert sorted(ops(after)) == ["Neg", "Relu", "Sub"]


def test_a_sum_of_tensors_and_one_that_is_not_meant_stay() -> None:
    text = "g (float[2,4] x) => (float[2,4] y) { a = Add(x, x) y = Add(a, k) }"
    after, record = changed_by(lambda model: add_to_sub(model, lambda node: False), model_from(text, k=normal(4)))
    assert not record.changed
    after, record = changed_by(add_to_sub, model_from(text, k=normal(4)))
    assert ops(after) == ["Add", "Sub"]
