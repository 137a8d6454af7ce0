from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.model.edit import scalar_of
from dovetail.passes.fold_inverse_sigmoid import fold_inverse_sigmoid
from tests.equality import changed_by, model_from, ops

CONSTANTS = """<float zero = {0}, float one = {1}, float eps = {0.00001}, float most = {0.99999}, float half = {0.5},
    float wide = {6}>"""
FORMS = {
    "detr": "s = Sigmoid(w) c = Clip(s, zero, one) a = Clip(c, eps) m = Sub(one, c) b = Clip(m, eps) d = Div(a, b)",
    "no outer clip": "s = Sigmoid(w) a = Clip(s, eps) m = Sub(one, s) b = Clip(m, eps) d = Div(a, b)",
    "torch.logit": "s = Sigmoid(w) c = Clip(s, eps, most) m = Sub(one, c) d = Div(c, m)",
    "max": "s = Sigmoid(w) a = Max(s, eps) m = Sub(one, s) b = Max(m, eps) d = Div(a, b)",
}
# The logit of a float32 sigmoid near 1 has lost half of its digits: the rewritten graph is more accurate.
FLOOR_DB = 80.0


def _model(form: str, end: str = "y = Log(d)", outputs: str = "float[4,8] y") -> ir.Model:
    return model_from(f"g (float[4,8] x) => ({outputs}) {CONSTANTS} {{ w = Mul(x, wide) {form} {end} }}")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_a_clip_of_the_sigmoid_input(form: str) -> None:
    after, record = changed_by(fold_inverse_sigmoid, _model(FORMS[form]), FLOOR_DB)
    assert ops(after) == ["Mul", "Clip"]
    low, high = (scalar_of(value) for value in after.graph.node(1).inputs[1:])
    assert low == pytest.approx(np.log(1e-5), abs=2e-3)
    assert high == pytest.approx(-np.log(1e-5), abs=2e-3)
    assert [site.where for site in record.changed] == ["y"]


def test_difference_of_logarithms_is_rewritten_too() -> None:
    form = "s = Sigmoid(w) c = Clip(s, eps, most) m = Sub(one, c) d = Log(c) e = Log(m)"
    after, _ = changed_by(fold_inverse_sigmoid, _model(form, "y = Sub(d, e)"), FLOOR_DB)
    assert ops(after) == ["Mul", "Clip"]


def test_without_bounds_it_is_the_sigmoid_input_itself() -> None:
    form = "s = Sigmoid(x) m = Sub(one, s) d = Div(s, m) l = Log(d) y = Relu(l)"
    model = model_from(f"g (float[4,8] x) => (float[4,8] y) {CONSTANTS} {{ {form} }}")
    after, _ = changed_by(fold_inverse_sigmoid, model, FLOOR_DB)
    assert ops(after) == ["Relu"]


def test_other_consumers_are_not_changed() -> None:
    end = "y = Log(d) u = Neg(s) v = Neg(d)"
    outputs = "float[4,8] y, float[4,8] u, float[4,8] v"
    after, _ = changed_by(fold_inverse_sigmoid, _model(FORMS["no outer clip"], end, outputs), FLOOR_DB)
    assert "Log" not in ops(after)
    assert ops(after).count("Sigmoid") == ops(after).count("Div") == 1


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ("s = Sigmoid(w) t = Sigmoid(x) m = Sub(one, t) d = Div(s, m)", "do not come from the same Sigmoid"),
        ("s = Softmax(w) c = Clip(s, eps, most) m = Sub(one, c) d = Div(c, m)", "do not come from the same Sigmoid"),
        ("s = Sigmoid(w) m = Sub(half, s) c = Clip(m, eps) d = Div(s, c)", "not one minus a value"),
        ("s = Sigmoid(w) c = Clip(s, eps, half) m = Sub(one, c) d = Div(c, m)", "clip the range"),
    ],
)
def test_other_expressions_are_declined(form: str, reason: str) -> None:
    after, record = changed_by(fold_inverse_sigmoid, _model(form))
    assert "Log" in ops(after)
    assert reason in record.declined[0].what


def test_boxes_that_are_selected_behind_the_sigmoid() -> None:
    """As after a TopK; the boxes themselves are an output too."""
    form = (
        "s = Sigmoid(w) g = Gather<axis = 0>(s, rows) a = Clip(g, eps) m = Sub(one, g) b = Clip(m, eps) d = Div(a, b)"
    )
    text = f"g (float[4,8] x) => (float[2,8] y, float[2,8] z) {CONSTANTS[:-1]}, int64[2] rows = {{3, 1}}>"
    model = model_from(f"{text} {{ w = Mul(x, wide) {form} y = Log(d) z = Neg(g) }}")
    after, record = changed_by(fold_inverse_sigmoid, model, FLOOR_DB)
    assert sorted(ops(after)) == ["Clip", "Gather", "Gather", "Mul", "Neg", "Sigmoid"]
    assert record.changed[0].where == "y"


@pytest.mark.parametrize(
    "form",
    [
        "s = Softmax(w) a = Clip(s, eps) m = Sub(one, s) b = Clip(m, eps) d = Div(a, b)",
        "s = Sigmoid(w) a = Clip(s, half) m = Sub(one, s) b = Clip(m, eps) d = Div(a, b)",
    ],
)
def test_any_other_ratio_is_written_as_two_logarithms(form: str) -> None:
    """The ratio, which somebody else reads, stays; its logarithm does not depend on it any more."""
    model = _model(form, "y = Log(d) z = Neg(d)", "float[4,8] y, float[4,8] z")
    after, record = changed_by(fold_inverse_sigmoid, model)
    assert [ops(after).count(op) for op in ("Log", "Sub", "Div")] == [2, 2, 1]
    assert "difference of two logarithms" in record.changed[0].what
