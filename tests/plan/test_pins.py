"""Pins: what ``--keep`` patterns match, and what the planner does with pins."""

from __future__ import annotations

import pytest

from dovetail.edge import Edge
from dovetail.encoding import DType, QParams
from dovetail.errors import InputError
from dovetail.op_support import A8, FP32, W8A8, W8A16
from dovetail.plan.constraints import build_problem
from dovetail.plan.make import make_plan, narrower
from dovetail.plan.pins import resolve_keeps
from dovetail.plan.request import Keep, OperandPin, Pin, Pins, Request
from dovetail.storage import Reason
from dovetail.targets import open_target
from dovetail.targets.ort_cpu.target import ORT_CPU
from tests.planning import graph, noise, observe

LAYERS = """
    net (float[2, 4] x) => (float[2, 4] y) <int64[2] shape = {2, 4}, float[4, 4] w =
        {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}>
    { encoder_fc = MatMul(x, w)
      encoder_act = Gelu(encoder_fc)
      moved = Reshape(encoder_act, shape)
      y = Gelu(moved) }
"""
MATMUL = "net (float[4, 8] a, float[8, 4] b) => (float[4, 4] y) { p = MatMul(a, b)  y = Gelu(p) }"


@pytest.mark.parametrize(
    ("pattern", "near"),
    [("encoder_fx", "'encoder_fc'"), ("Encoder_*", "'encoder_act'"), ("fc", "'encoder_fc'"), ("zzz", None)],
)
def test_a_pattern_that_matches_nothing_is_refused_with_similar_names(pattern: str, near: str | None) -> None:
    problem = build_problem(graph(LAYERS), ORT_CPU.table)
    with pytest.raises(InputError, match="no tensor or node name matches") as caught:
        resolve_keeps(problem, [Keep(pattern, FP32)])
    _, _, similar = str(caught.value).partition("similar names: ")
    assert (near in similar) if near else not similar


def test_a_group_is_pinned_by_any_of_its_members() -> None:
    model = graph(LAYERS)
    stats = observe(model, ORT_CPU, noise(model))
    plans = [
        make_plan(
            model, ORT_CPU.table, stats, Request(W8A8, pins=Pins(groups={name: Pin(FP32, Reason.PINNED, "asked")}))
        )
        for name in ("encoder_act", "moved")
    ]
    assert plans[0].tensors["encoder_act"].storage.dtype is DType.F32
    assert plans[0].tensors["encoder_act"] == plans[1].tensors["encoder_act"]
    assert plans[0].tensors["moved"].why is Reason.PINNED
    assert isinstance(plans[0].tensors["encoder_fc"].storage, QParams)


def test_an_operand_is_pinned_to_an_encoding_in_the_table() -> None:
    htp = open_target("qnn-htp:sm8550")
    model = graph(MATMUL)
    stats = observe(model, htp, noise(model))
    wide = Request(W8A16)
    ((edge, encoding),) = narrower(model, htp.table, stats, wide).items()
    assert (edge.index, encoding) == (1, A8)
    plans = [
        make_plan(model, htp.table, stats, request)
        for request in (wide, wide.pinned(Pins(operands={edge: OperandPin(encoding, Reason.PINNED, "asked")})))
    ]
    assert [plan.edges[edge].storage.dtype for plan in plans] == [DType.S16, DType.U8]
    with pytest.raises(ValueError, match="MatMul has no signature with the encodings pinned on"):
        make_plan(
            model,
            htp.table,
            stats,
            wide.pinned(Pins(operands={Edge(edge.node, 0): OperandPin(A8, Reason.PINNED, "asked")})),
        )


def test_later_pins_win() -> None:
    first, second = (Pins({"u": Pin(p, Reason.PINNED, "")}) for p in (FP32, W8A8))
    assert (first | second).units["u"].precision is W8A8
