"""Tensors that a Concat merges, and scales that a kernel requires."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dovetail.edge import Edge
from dovetail.encoding import DType, QParams
from dovetail.op_support import A8, F32, FixedQParams, OpSupport, multiple_of, signature
from dovetail.storage import Plan, Reason
from dovetail.target import Target
from tests.changed import changed
from tests.planning import graph, noise, planned
from tests.toy_target import TOY

BODY = """
g (float[1,4] x, float[1,4] y) => (float[1,8] z, float[1,4] w)
{ a = Relu(x)  b = OP(a)  c = Concat <axis = 1> (b, y)  z = Relu(c)  w = Relu(b) }
"""


def with_op(op: str, support: OpSupport) -> Target:
    return changed(TOY, ops={**TOY.table.ops, op: support})


def storage(plan: Plan, name: str) -> QParams:
    qparams = plan.tensors[name].storage
    assert isinstance(qparams, QParams)
    return qparams


def range_of(qparams: QParams) -> tuple[float, float]:
    zero, scale = int(qparams.zero_point), float(qparams.scale)
    return -zero * scale, (255 - zero) * scale


def test_the_range_of_a_merge_covers_tensors_that_are_converted_into_it() -> None:
    model = graph(
        BODY.replace("OP", "Mul").replace("Mul(a)", "Mul(a, minus)").replace("{ a", "<float minus = {-1}> { a")
    )
    data = noise(model)
    data["y"] = np.abs(data["y"]) * 100  # wider by far, but without negative numbers
    plan = planned(model, TOY, data=data, quantized_io=True)
    edge = Edge(next(n.name or "" for n in model.graph if n.op_type == "Concat"), 0)
    assert plan.edges[edge].storage == plan.tensors["c"].storage != plan.tensors["b"].storage
    low, high = range_of(storage(plan, "c"))
    assert low <= -data["x"].max() + float(storage(plan, "c").scale) / 2
    assert high >= data["y"].max() * 0.99


@pytest.mark.parametrize(
    ("support", "reason"),
    [
        (
            OpSupport((signature(A8, out=A8),), fixed=(FixedQParams(DType.U8, 1 / 256, 0),)),
            "Sigmoid has a fixed output scale and zero point",
        ),
        (OpSupport((signature(F32, out=F32),)), "Sigmoid writes only float"),
    ],
)
def test_a_tensor_with_fixed_qparams_or_in_float_is_converted(support: OpSupport, reason: str) -> None:
    model = graph(BODY.replace("OP", "Sigmoid"))
    plan = planned(model, with_op("Sigmoid", support), data=noise(model), quantized_io=True)
    edge = plan.edges[Edge(next(n.name or "" for n in model.graph if n.op_type == "Concat"), 0)]
    assert edge.why is Reason.SEPARATE
    assert reason in edge.detail
    assert edge.storage == plan.tensors["c"].storage == plan.tensors["y"].storage
    assert plan.tensors["b"].storage != plan.tensors["c"].storage


def test_a_scale_is_enlarged_to_the_step_of_the_kernel_that_writes_it() -> None:
    model = graph(
        "g (float[1,64] x) => (float[1,64] z) { a = Softmax(x)  b = Reshape(a, s)  z = Relu(b) }".replace(
            "{ a", "<int64[2] s = {1, 64}> { a"
        )
    )
    data, step = noise(model), 1 / 4096
    unconstrained = storage(planned(model, TOY, data=data, quantized_io=True), "a")
    plan = planned(
        model,
        with_op("Softmax", dataclasses.replace(TOY.table.ops["Softmax"], output_scale=multiple_of(step, DType.U8))),
        data=data,
        quantized_io=True,
    )
    enlarged = storage(plan, "a")
    steps = float(enlarged.scale) / step
    assert steps == round(steps)
    assert float(unconstrained.scale) <= float(enlarged.scale) < float(unconstrained.scale) + step
    assert plan.tensors["b"].storage == enlarged
    assert "% as the target's kernel requires" in plan.tensors["a"].detail


def test_a_scale_is_enlarged_to_the_smallest_that_the_kernel_supports() -> None:
    model = graph("g (float[1,8] x) => (float[1,8] z) { a = Relu(x)  b = Add(a, x)  z = Softmax(b) }")
    data = noise(model, scale=1e-3)
    target = with_op("Softmax", dataclasses.replace(TOY.table.ops["Softmax"], least_scale={DType.U8: 0.125}))
    plan = planned(model, target, data=data, quantized_io=True)
    assert float(storage(plan, "b").scale) == 0.125
    assert float(storage(plan, "a").scale) < 1e-3
    low, high = range_of(storage(plan, "b"))
    assert low <= 2 * data["x"].min() <= 2 * data["x"].max() <= high


def test_an_input_scale_is_enlarged_to_one_that_the_kernel_supports() -> None:
    model = graph("g (float[1,8] x) => (float[1,8] z) { a = Relu(x)  b = Add(a, x)  z = Softmax(b) }")
    data, step = noise(model), 1 / 1024
    support = dataclasses.replace(TOY.table.ops["Softmax"], input_scale=multiple_of(step, DType.U8))
    unconstrained = storage(planned(model, TOY, data=data, quantized_io=True), "b")
    plan = planned(model, with_op("Softmax", support), data=data, quantized_io=True)
    steps = float(storage(plan, "b").scale) / step
    assert steps == round(steps)
    assert float(unconstrained.scale) < float(storage(plan, "b").scale) < float(unconstrained.scale) + step
