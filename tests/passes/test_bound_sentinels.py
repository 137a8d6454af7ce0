from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.model.edit import constant_of
from dovetail.model.sentinels import SATURATED
from dovetail.passes.bound_sentinels import bound_sentinels
from tests.equality import changed_by, model_from, ops

LARGEST = float(np.finfo(np.float32).max)
INDEX = "int64[2] index = {0,3}, float low = {-11.5}, float high = {11.5}, bool[4,1] some = {0,1,1,0}"


def _model(body: str, *sentinels: float, outputs: str = "float[A,2] y") -> ir.Model:
    anchors = np.linspace(-2, 2, 8, dtype=np.float32).reshape(4, 2)
    for row, sentinel in enumerate(sentinels):
        anchors[row] = sentinel
    return model_from(f"g (float[4,2] x) => ({outputs}) <{INDEX}> {{ {body} }}", anchors=anchors)


@pytest.mark.parametrize("sentinel", [LARGEST, -LARGEST, np.inf, -np.inf])
def test_sentinels_before_a_sigmoid_are_bounded(sentinel: float) -> None:
    body = "a = Add(x, anchors) b = Gather(a, index) y = Sigmoid(b)"
    after, record = changed_by(bound_sentinels, _model(body, sentinel))
    array = constant_of(after.graph.node(0).inputs[1])
    assert array is not None
    assert array[0].tolist() == [np.sign(sentinel) * SATURATED] * 2
    assert array[1:].max() == 2
    assert [site.where for site in record.changed] == ["anchors"]


@pytest.mark.filterwarnings("error")
def test_only_infinities_are_sentinels_in_float16() -> None:
    anchors = np.array([np.inf, 65504, 1], np.float16)
    model = model_from("g (float16[3] x) => (float16[3] y) { a = Add(x, anchors) y = Sigmoid(a) }", anchors=anchors)
    after, _ = changed_by(bound_sentinels, model)
    array = constant_of(after.graph.node(0).inputs[1])
    assert array is not None
    assert array.tolist() == [SATURATED, 65504, 1]


def test_clip_to_a_smaller_range_saturates_too() -> None:
    body = "a = Add(x, anchors) s = Sigmoid(a) c = Clip(a, low, high) y = Mul(s, c)"
    after, record = changed_by(bound_sentinels, _model(body, LARGEST, -LARGEST), 90)
    assert record.changed
    assert ops(after) == ["Add", "Sigmoid", "Clip", "Mul"]


def test_sentinels_selected_by_where_are_bounded() -> None:
    after, _ = changed_by(bound_sentinels, _model("a = Where(some, anchors, x) y = Sigmoid(a)", 0, np.inf))
    assert np.isfinite(constant_of(after.graph.node(0).inputs[1])).all()


def test_another_consumer_of_the_constant_keeps_it() -> None:
    body = "a = Add(x, anchors) y = Sigmoid(a) z = Min(anchors, x)"
    after, _ = changed_by(bound_sentinels, _model(body, LARGEST, outputs="float[A,2] y, float[4,2] z"))
    assert constant_of(after.graph.node(2).inputs[0]).max() == np.float32(LARGEST)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Add(x, anchors) b = Gather(a, index) y = Relu(b)", "depends on its magnitude"),
        ("y = Add(x, anchors)", "reach a graph output"),
        ("a = Add(x, anchors) y = Clip(a, low)", "depends on its magnitude"),
    ],
)
def test_consumer_that_does_not_saturate_keeps_the_sentinel(body: str, reason: str) -> None:
    model = _model(body, LARGEST)
    after, record = changed_by(bound_sentinels, model)
    assert not record.changed
    assert reason in record.declined[0].what
    assert ops(after) == ops(model)
