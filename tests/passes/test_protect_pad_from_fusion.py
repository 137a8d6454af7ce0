"""A Pad before a pooling operator pads with zeros in ONNX Runtime too, with all of its optimizations."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from dovetail.model.edit import constant_of
from dovetail.model.session import Mode, open_session, run_session
from dovetail.passes.protect_pad_from_fusion import protect_pad_from_fusion
from tests.equality import Array, changed_by, model_from, random_inputs, run

SMALL = np.array([0, 0, 1, 1, 0, 0, 1, 1])
AS_LARGE_AS_THE_KERNEL = np.array([0, 0, 2, 2, 0, 0, 2, 2])
INPUT = "float[1,2,7,7] x"
KEPT = {
    "negative inputs": ("p = Pad(x, pads, zero) y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(p)", SMALL),
    "no value": ("p = Pad(x, pads) y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(p)", SMALL),
    "MaxPool, as large as the kernel": (
        "p = Pad(x, pads) y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(p)",
        AS_LARGE_AS_THE_KERNEL,
    ),
    "Relu, as large as the kernel": (
        "r = Relu(x) p = Pad(r, pads) y = MaxPool<kernel_shape=[2,2]>(p)",
        AS_LARGE_AS_THE_KERNEL,
    ),
    "AveragePool, as large as the kernel": (
        "p = Pad(x, pads) y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(p)",
        AS_LARGE_AS_THE_KERNEL,
    ),
    "added to the pads of the pool": (
        "r = Relu(x) p = Pad(r, pads) y = MaxPool<kernel_shape=[3,3], pads=[2,2,2,2]>(p)",
        SMALL,
    ),
    "ceil_mode": (
        "r = Relu(x) p = Pad(r, pads) y = MaxPool<kernel_shape=[3,3], strides=[3,3], ceil_mode=1>(p)",
        np.array([0, 0, 0, 0, 0, 0, 2, 2]),
    ),
    "a Cast in between": (
        "p = Pad(x, pads) c = Cast<to=11>(p) m = MaxPool<kernel_shape=[2,2]>(c) y = Cast<to=1>(m)",
        SMALL,
    ),
}


def deployed(model: ir.Model, inputs: dict[str, Array]) -> dict[str, Array]:
    """The outputs of a session with default options, as a user would open it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    data = ir.to_proto(model).SerializeToString()
    session: Any = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return run_session(session, inputs)


def graph(body: str, pads: Array, *, outputs: str = "float[1,2,H,W] y", inputs: str = INPUT) -> ir.Model:
    constants = {"zero": np.float32(0), "ones": np.ones((2, 2, 2, 2), np.float32), "pads": pads}
    return model_from(f"g ({inputs}) => ({outputs}) {{ {body} }}", **{k: v for k, v in constants.items() if k in body})


def negative_inputs(model: ir.Model) -> dict[str, Array]:
    return {name: -np.abs(array) for name, array in random_inputs(model).items()}


@pytest.mark.parametrize("case", KEPT)
def test_pad_that_must_not_be_folded_is_kept(case: str) -> None:
    model = graph(*KEPT[case])
    after, record = changed_by(protect_pad_from_fusion, model)
    assert [site.what.split("'")[0] for site in record.changed] in (
        ["Pad kept before MaxPool "],
        ["Pad kept before AveragePool "],
    )
    inputs = negative_inputs(model)
    np.testing.assert_array_equal(deployed(after, inputs)["y"], run(model, inputs)["y"])
    assert protect_pad_from_fusion(after).changed == ()


DECLINED = {
    "never negative": ("r = Relu(x) p = Pad(r, pads) y = MaxPool<kernel_shape=[2,2]>(p)", "never negative"),
    "AveragePool": ("p = Pad(x, pads) y = AveragePool<kernel_shape=[2,2]>(p)", "pads with zeros too"),
    "integers": (
        "q = Cast<to=3>(x) p = Pad(q, pads) m = MaxPool<kernel_shape=[2,2]>(p) y = Cast<to=1>(m)",
        "INT8, which has no minus zero",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
def test_pad_that_can_be_folded_is_declined(case: str) -> None:
    body, reason = DECLINED[case]
    _, record = changed_by(protect_pad_from_fusion, graph(body, SMALL))
    assert record.changed == ()
    assert reason in record.declined[0].what


@pytest.mark.parametrize(
    "body",
    [
        "p = Pad(x, pads) y = Conv(p, ones)",
        'p = Pad<mode="reflect">(x, pads) y = MaxPool<kernel_shape=[2,2]>(p)',
        'p = Pad(x, pads) y = MaxPool<kernel_shape=[2,2], auto_pad="SAME_UPPER">(p)',
        "p = Pad(x, pads) y, i = MaxPool<kernel_shape=[2,2]>(p)",
    ],
)
def test_pad_that_is_not_folded_is_ignored(body: str) -> None:
    model = graph(body, SMALL)
    _, record = changed_by(protect_pad_from_fusion, model)
    assert (record.changed, record.declined) == ((), ())
    np.testing.assert_allclose(
        deployed(model, negative_inputs(model))["y"], run(model, negative_inputs(model))["y"], rtol=1e-5
    )


def test_second_consumer_of_the_padded_tensor() -> None:
    """ONNX Runtime folds no Pad with other consumers, and a shared padding value stays a plain zero."""
    shared = "p = Pad(x, pads, zero) y = MaxPool<kernel_shape=[2,2]>(p) z = Neg(p)"
    model = graph(shared, AS_LARGE_AS_THE_KERNEL, outputs="float[1,2,10,10] y, float[1,2,11,11] z")
    after, record = changed_by(protect_pad_from_fusion, model)
    assert record.changed == ()
    np.testing.assert_array_equal(deployed(after, negative_inputs(model))["y"], run(model, negative_inputs(model))["y"])

    body = "p = Pad(x, pads, zero) y = MaxPool<kernel_shape=[2,2]>(p) z = Add(x, zero)"
    model = graph(body, SMALL, outputs="float[1,2,8,8] y, float[1,2,7,7] z")
    after, record = changed_by(protect_pad_from_fusion, model)
    assert len(record.changed) == 1
    zero = constant_of(after.graph.initializers["zero"])
    assert zero is not None
    assert not np.signbit(zero)


@pytest.mark.parametrize("mode", [Mode.FLOAT, Mode.EXACT])
@pytest.mark.parametrize("case", ["negative inputs", "MaxPool, as large as the kernel"])
def test_original_model_runs_with_its_padding(case: str, mode: Mode) -> None:
    model = graph(*KEPT[case])
    session = open_session(ir.to_proto(model).SerializeToString(), mode)
    np.testing.assert_array_equal(
        run_session(session, negative_inputs(model))["y"], run(model, negative_inputs(model))["y"]
    )
