from __future__ import annotations

from dovetail.passes.mish_to_tanh import mish_to_tanh
from tests.equality import changed_by, model_from, ops


def test_a_mish_is_a_product_and_other_consumers_are_not_changed() -> None:
    text = "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { a = Neg(x) m = Mish(a) y = Neg(m) z = Exp(a) }"
    after, record = changed_by(mish_to_tanh, model_from(text))
    assert sorted(ops(after)) == ["Exp", "Mul", "Neg", "Neg", "Softplus", "Tanh"]
    assert [site.where for site in record.changed] == ["m"]


def test_other_activations_are_not_changed() -> None:
    after, record = changed_by(mish_to_tanh, model_from("g (float[2,3] x) => (float[2,3] y) { y = Softplus(x) }"))
    assert ops(after) == ["Softplus"]
    assert not record.changed
