from __future__ import annotations

from dovetail.passes.softplus_to_sigmoid import softplus_to_sigmoid
from tests.equality import changed_by, model_from, ops


def test_a_mish_has_no_softplus_and_no_tanh() -> None:
    text = """g (float[2,3,4] x) => (float[2,3,4] y) <float c = {4}>
        { a = Mul(x, c) s = Softplus(a) t = Tanh(s) y = Mul(a, t) }"""
    after, record = changed_by(softplus_to_sigmoid, model_from(text))
    assert ops(after) == ["Mul", "Neg", "Sigmoid", "Mul", "Sub", "Add", "Div", "Mul"]
    assert [site.where for site in record.changed] == ["t"]


def test_a_softplus_is_a_logarithm_of_a_sigmoid() -> None:
    text = "g (float[2,3,4] x) => (float[2,3,4] y) <float c = {4}> { a = Mul(x, c) y = Softplus(a) }"
    after, record = changed_by(softplus_to_sigmoid, model_from(text))
    assert sorted(ops(after)) == ["Abs", "Log", "Mul", "Relu", "Sigmoid", "Sub"]
    assert [site.where for site in record.changed] == ["y"]


def test_other_consumers_of_a_softplus_and_its_input_are_not_changed() -> None:
    text = """g (float[2,3] x) => (float[2,3] t, float[2,3] u, float[2,3] v)
        { a = Neg(x) s = Softplus(a) t = Tanh(s) u = Relu(s) v = Exp(a) }"""
    after, record = changed_by(softplus_to_sigmoid, model_from(text))
    assert "Softplus" not in ops(after)
    assert len(record.changed) == 2
    assert ops(after).count("Exp") == 1


def test_a_tanh_of_something_else_is_not_changed() -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { a = Sigmoid(x) y = Tanh(a) }"
    after, record = changed_by(softplus_to_sigmoid, model_from(text))
    assert ops(after) == ["Sigmoid", "Tanh"]
    assert not record.changed
