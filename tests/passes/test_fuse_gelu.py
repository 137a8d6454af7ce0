from __future__ import annotations

import pytest

from dovetail.pass_record import PassRecord
from dovetail.passes.fuse_gelu import fuse_gelu
from tests.equality import changed_by, model_from, ops

ERF = {
    "torch": "a = Div(x, root2) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)",
    "half first": "a = Div(x, root2) b = Erf(a) c = Add(b, one) d = Mul(x, half) y = Mul(d, c)",
    "half on the curve": "a = Mul(x, root_half) b = Erf(a) c = Add(one, b) d = Mul(c, half) y = Mul(d, x)",
    "constants first": "a = Mul(root_half, x) b = Erf(a) c = Add(one, b) d = Mul(half, x) y = Mul(c, d)",
    "divided by two": "a = Div(x, root2) b = Erf(a) c = Add(b, one) d = Mul(c, x) y = Div(d, two)",
    "distributed": "a = Div(x, root2) b = Erf(a) c = Mul(b, half) d = Add(c, half) y = Mul(x, d)",
}
TANH = {
    "cube by Pow": "p = Pow(x, three) q = Mul(p, cubic) r = Add(x, q) s = Mul(r, slope)",
    "cube by Mul": "n = Mul(x, x) p = Mul(n, x) q = Mul(cubic, p) r = Add(q, x) s = Mul(slope, r)",
    "factored": "n = Mul(x, x) p = Mul(n, cubic) q = Add(p, one) r = Mul(x, slope) s = Mul(r, q)",
}
END = "t = Tanh(s) u = Add(t, one) v = Mul(x, half) y = Mul(v, u)"
CONSTANTS = """<float one = {1}, float two = {2}, float three = {3}, float half = {0.5}, float root2 = {1.4142135},
    float root_half = {0.70710677}, float cubic = {0.044715}, float slope = {0.7978846}, float sigmoid = {1.702}>"""


@pytest.mark.parametrize("form", ERF)
def test_fuses_every_form_with_erf(form: str) -> None:
    after, record = changed_by(
        fuse_gelu, model_from(f"g (float[4,8] x) => (float[4,8] y) {CONSTANTS} {{ {ERF[form]} }}")
    )
    assert ops(after) == ["Gelu"]
    assert after.graph.node(0).attributes["approximate"].value == "none"
    assert [site.where for site in record.changed] == ["y"]


@pytest.mark.parametrize("form", TANH)
def test_fuses_every_form_with_tanh(form: str) -> None:
    text = f"g (float[4,8] x) => (float[4,8] y) {CONSTANTS} {{ {TANH[form]} {END} }}"
    after, _ = changed_by(fuse_gelu, model_from(text))
    assert ops(after) == ["Gelu"]
    assert after.graph.node(0).attributes["approximate"].value == "tanh"


def test_input_computed_by_arithmetic_is_found() -> None:
    text = "w = Mul(i, two) x = Add(w, w)" + ERF["torch"]
    after, _ = changed_by(fuse_gelu, model_from(f"g (float[4,8] i) => (float[4,8] y) {CONSTANTS} {{ {text} }}"))
    assert ops(after) == ["Mul", "Add", "Gelu"]


def test_inner_tensor_with_a_second_consumer_stays() -> None:
    text = f"g (float[4,8] x) => (float[4,8] y, float[4,8] z) {CONSTANTS} {{ {ERF['torch']} z = Neg(c) }}"
    after, record = changed_by(fuse_gelu, model_from(text))
    assert sorted(ops(after)) == ["Add", "Div", "Erf", "Gelu", "Neg"]
    assert len(record.changed) == 1


def _declined(body: str) -> PassRecord:
    model = model_from(f"g (float[4,8] x, float[4,8] z) => (float[4,8] y) {CONSTANTS} {{ {body} }}")
    after, record = changed_by(fuse_gelu, model)
    assert ops(after) == ops(model)
    assert not record.changed
    return record


def test_erf_with_another_slope_is_declined() -> None:
    record = _declined("a = Div(x, two) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)")
    assert record.declined[0].what == "the Erf is not part of a GELU"


def test_gate_of_another_tensor_is_declined() -> None:
    record = _declined("a = Div(x, root2) b = Erf(a) c = Add(b, one) d = Mul(z, c) y = Mul(d, half)")
    assert len(record.declined) == 1


def test_sigmoid_approximation_is_declined() -> None:
    record = _declined("a = Mul(x, sigmoid) b = Sigmoid(a) y = Mul(x, b)")
    assert "approximates" in record.declined[0].what


def test_plain_tanh_is_ignored() -> None:
    assert not _declined("y = Tanh(x)").declined
