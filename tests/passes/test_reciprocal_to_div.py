from __future__ import annotations

from dovetail.passes.reciprocal_to_div import reciprocal_to_div
from tests.equality import changed_by, model_from, ops

POSITIVE = "a = Exp(x)"


def test_a_product_with_a_reciprocal_is_a_division() -> None:
    text = f"g (float[2,3] x) => (float[2,3] y) {{ {POSITIVE} r = Reciprocal(a) y = Mul(r, x) }}"
    after, record = changed_by(reciprocal_to_div, model_from(text))
    assert ops(after) == ["Exp", "Div"]
    assert [site.where for site in record.changed] == ["y"]


def test_other_consumers_read_one_divided_by_it() -> None:
    text = f"""g (float[2,3] x) => (float[2,3] y, float[2,3] z, float[2,3] u, float[2,3] r)
        {{ {POSITIVE} r = Reciprocal(a) y = Mul(x, r) z = Mul(r, r) u = Add(a, r) }}"""
    after, record = changed_by(reciprocal_to_div, model_from(text))
    assert sorted(ops(after)) == ["Add", "Div", "Div", "Exp", "Mul"]
    assert [site.where for site in record.changed] == ["y", "r"]


def test_other_divisions_are_not_changed() -> None:
    text = f"g (float[2,3] x) => (float[2,3] y) {{ {POSITIVE} y = Div(x, a) }}"
    after, record = changed_by(reciprocal_to_div, model_from(text))
    assert ops(after) == ["Exp", "Div"]
    assert not record.changed
