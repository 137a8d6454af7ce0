"""Inputs that the target's table requires with another scale than their tensor has."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir
import pytest

from dovetail.edge import Edge
from dovetail.encoding import DType, QParams
from dovetail.op_support import FP32, W8A8
from dovetail.storage import Reason
from dovetail.target import Target
from tests.changed import with_op
from tests.planning import graph, planned
from tests.toy_target import TOY

SILU = """g (float[1,4,8] x) => (float[1,4,8] y, float[1,4,8] z)
    { a = Relu(x) [gate] s = Relu(a) [mul] y = Mul(a, s) z = Add(a, s) }"""


def _first_of_mul(node: ir.Node, index: int, dtype: DType) -> str:
    return "its kernel computes something else" if index == 0 and dtype is DType.U8 else ""


@pytest.fixture
def target() -> Target:
    return with_op(TOY, "Mul", dataclasses.replace(TOY.table.ops["Mul"], rescaled=_first_of_mul))


def test_the_input_gets_a_larger_scale_of_its_own(target: Target) -> None:
    plan = planned(graph(SILU), target, W8A8)
    choice, own = plan.edges[Edge("mul", 0)], plan.tensors["a"].storage
    assert isinstance(choice.storage, QParams)
    assert isinstance(own, QParams)
    assert 1 < float(choice.storage.scale / own.scale) < 1.1
    assert choice.storage.zero_point == own.zero_point
    assert choice.why is Reason.OPERAND
    assert choice.detail == "its kernel computes something else"


def test_other_inputs_and_consumers_read_the_tensor_as_it_is(target: Target) -> None:
    plan = planned(graph(SILU), target, W8A8)
    assert set(plan.edges) == {Edge("mul", 0)}
    assert not planned(graph(SILU), TOY, W8A8).edges


def test_a_float_input_is_not_requantized(target: Target) -> None:
    plan = planned(graph(SILU), target, W8A8, keep={"mul": FP32})
    choice = plan.edges[Edge("mul", 0)]
    assert not isinstance(choice.storage, QParams)
