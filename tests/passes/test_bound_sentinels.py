from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.model.edit import constant_of
from dovetail.passes.bound_sentinels import SATURATED, bound_sentinels
from tests.equality import changed_by, model_from, ops

LARGEST = float(np.finfo(np.float32).max)
INDEX = "int64[2] index = {0,3}, float low = {-11.5}, float high = {11.5}, bool[4,1] some = {0,1,1,0}"


def _model(body: str, *marks: float, outputs: str = "float[A,2] y") -> ir.Model:
    anchors = np.linspace(-2, 2, 8, dtype=np.float32).reshape(4, 2)
    for row, mark in enumerate(marks):
        anchors[row] = mark
    return model_from(f"g (float[4,2] x) => ({outputs}) <{INDEX}> {{ {body} }}", anchors=anchors)


@pytest.mark.parametrize("mark", [LARGEST, -LARGEST, np.inf, -np.inf])
def test_marks_in_front_of_a_sigmoid_are_bounded(mark: float) -> None:
    after, record = changed_by(bound_sentinels, _model("a = Add(x, anchors) b = Gather(a, index) y = Sigmoid(b)", mark))
    array = constant_of(after.graph.node(0).inputs[1])
    assert array is not None
    assert array[0].tolist() == [np.sign(mark) * SATURATED] * 2
    assert array[1:].max() == 2
    assert [site.where for site in record.changed] == ["anchors"]


@pytest.mark.filterwarnings("error")
def test_marks_in_float16_are_infinities_alone() -> None:
    anchors = np.array([np.inf, 65504, 1], np.float16)
    model = model_from("g (float16[3] x) => (float16[3] y) { a = Add(x, anchors) y = Sigmoid(a) }", anchors=anchors)
    after, _ = changed_by(bound_sentinels, model)
    array = constant_of(after.graph.node(0).inputs[1])
    assert array is not None
    assert array.tolist() == [SATURATED, 65504, 1]


def test_a_clip_within_the_bound_saturates_too() -> None:
    body = "a = Add(x, anchors) s = Sigmoid(a) c = Clip(a, low, high) y = Mul(s, c)"
    after, record = changed_by(bound_sentinels, _model(body, LARGEST, -LARGEST), 90)
    assert record.changed
    assert ops(after) == ["Add", "Sigmoid", "Clip", "Mul"]


def test_marks_that_are_chosen_are_bounded() -> None:
    after, _ = changed_by(bound_sentinels, _model("a = Where(some, anchors, x) y = Sigmoid(a)", 0, np.inf))
    assert np.isfinite(constant_of(after.graph.node(0).inputs[1])).all()


def test_another_reader_of_the_constant_keeps_it() -> None:
    body = "a = Add(x, anchors) y = Sigmoid(a) z = Min(anchors, x)"
    after, _ = changed_by(bound_sentinels, _model(body, LARGEST, outputs="float[A,2] y, float[4,2] z"))
    assert constant_of(after.graph.node(2).inputs[0]).max() == np.float32(LARGEST)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Add(x, anchors) b = Gather(a, index) y = Relu(b)", "can tell how large it is"),
        ("y = Add(x, anchors)", "reaches an output"),
        ("a = Add(x, anchors) y = Clip(a, low)", "can tell how large it is"),
    ],
)
def test_what_can_tell_keeps_the_mark(body: str, reason: str) -> None:
    model = _model(body, LARGEST)
    after, record = changed_by(bound_sentinels, model)
    assert not record.changed
    assert reason in record.declined[0].what
    assert ops(after) == ops(model)
