from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from dovetail.errors import InputError
from dovetail.model.opset import OPSET, raise_opset
from tests.equality import assert_equal, model_from, normal, ops

OLD = """g (float[2,3,8] x) => (float[2,8] y) { s = Softmax<axis=2>(x) m = ReduceMean<axes=[1], keepdims=1>(s)
    q = Squeeze<axes=[1]>(m) d = Dropout(q) y = MatMul(d, w) }"""


@pytest.mark.parametrize("opset", [11, 12])
def test_old_model_computes_the_same(opset: int) -> None:
    model = model_from(OLD, opset=opset, w=normal(8, 8))
    model.metadata_props["author"] = "someone"
    raised = raise_opset(model)
    assert raised.opset_imports[""] == OPSET
    assert raised.metadata_props["author"] == "someone"
    assert list(raised.graph.initializers) == ["w"]
    onnx.checker.check_model(ir.to_proto(raised), full_check=True)
    assert_equal(model, raised)


def test_weights_are_not_changed() -> None:
    model = model_from("g (float[1,40] x) => (float[1,40] y) { y = MatMul(x, w) }", opset=13, w=normal(40, 40))
    raised = raise_opset(model)
    assert raised.graph.initializers["w"].const_value is model.graph.initializers["w"].const_value
    assert [value.name for value in raised.graph.inputs] == ["x"]


@pytest.mark.parametrize("opset", [21, 22, 24])
def test_newer_model_keeps_its_opset(opset: int) -> None:
    model = model_from("g (float[3] x) => (float[3] y) { y = Neg(x) }", opset=opset)
    raised = raise_opset(model)
    assert raised.opset_imports[""] == opset
    assert raised is not model


def test_contrib_operators_are_kept() -> None:
    text = """g (float[2,3] x) => (float[2,1] y) <float[2,3] q>
        { q = com.microsoft.QuickGelu(x) y = ReduceMean<axes=[1]>(q) }"""
    raised = raise_opset(model_from(text, opset=13))
    assert {"QuickGelu", "ReduceMean"} <= set(ops(raised))
    assert_equal(model_from(text, opset=13), raised)


def test_subgraphs_are_raised_too() -> None:
    text = """g (float[1,4] x) => (float[4] y) <bool c = {1}>
        { y = If(c) <then_branch = a () => (float[4] z) { z = Squeeze<axes=[0]>(x) },
                     else_branch = b () => (float[4] z) { t = Squeeze<axes=[0]>(x) z = Neg(t) }> }"""
    model = model_from(text, opset=11)
    assert_equal(model, raise_opset(model))


OLDER = {
    "nearest": ("y = Upsample(x, s)", "float[1,2,12,8]", 9),
    "linear": ('y = Upsample<mode="linear">(x, s)', "float[1,2,12,8]", 9),
    "scales of an attribute": ('y = Upsample<mode="linear", scales=[1.0, 1.0, 2.0, 2.0]>(x)', "float[1,2,12,8]", 8),
    "one and a half": ("y = Resize(x, half)", "float[1,2,9,6]", 10),
    "smaller": ("y = Resize(x, less)", "float[1,2,3,2]", 10),
    "smaller, linear": ('y = Resize<mode="linear">(x, less)', "float[1,2,3,2]", 10),
    "clipped, padded and sliced": (
        "c = Clip<min=-0.5, max=0.5>(x) p = Pad<pads=[0,0,1,2,0,0,0,1], value=0.25>(c) "
        "y = Slice<axes=[2,3], starts=[0,1], ends=[-1,5]>(p)",
        "float[1,2,6,4]",
        7,
    ),
    "normalized over all after an axis": ("y = Softmax<axis=1>(x)", "float[1,2,6,4]", 7),
}


@pytest.mark.parametrize(("body", "shape", "opset"), OLDER.values(), ids=OLDER.keys())
def test_models_from_opset_7_on_compute_the_same(body: str, shape: str, opset: int) -> None:
    text = f"g (float[1,2,6,4] x) => ({shape} y) {{ {body} }}"
    scales = {"s": (1, 1, 2, 2), "half": (1, 1, 1.5, 1.5), "less": (1, 1, 0.6, 0.6)}
    used = {name: np.array(value, np.float32) for name, value in scales.items() if f" {name})" in body}
    model = model_from(text, opset=opset, **used)
    assert_equal(model, raise_opset(model))


def test_a_resize_whose_axes_round_differently_is_refused() -> None:
    text = "g (float[1,2,6,4] x) => (float[1,2,3,8] y) { y = Resize(x, s) }"
    with pytest.raises(InputError, match="enlarges one axis and shrinks another"):
        raise_opset(model_from(text, opset=10, s=np.array([1, 1, 0.5, 2], np.float32)))
