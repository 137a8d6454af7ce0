"""Workarounds: what they may and may not change in the build that ships."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.encoding import DType
from dovetail.finding import Place, PlaceKind
from dovetail.op_support import FP16, W8A16
from dovetail.plan.request import Pin, Pins
from dovetail.storage import Reason
from dovetail.targets import open_target
from dovetail.trials.knobs.islands import islands
from dovetail.trials.knobs.operand_widths import OPERAND_WIDTHS
from dovetail.trials.locate import FaultLocation
from dovetail.trials.variant import pinned
from tests.networks.small_graphs import TWO_PRODUCTS
from tests.planning import graph
from tests.trials.benches import bench_of


@pytest.mark.parametrize("tensor", ["s", "s2", "y"])
def test_an_island_removes_the_operand_pins_of_its_operator(tensor: str, tmp_path: Path) -> None:
    htp, model = open_target("qnn-htp:sm8550"), graph(TWO_PRODUCTS)
    bench, variant = bench_of(model, htp, W8A16, tmp_path)
    variant, _ = OPERAND_WIDTHS.decide(bench, variant)
    node = next(node for node in model.graph if node.outputs[0].name == tensor)
    located = FaultLocation(Place(PlaceKind.NODE, (str(node.name),)), str(node.name), DType.U16, 0.0, 40.0)
    workaround = islands(FP16).workaround(variant, located)
    assert workaround is not None
    plan = bench.plan(workaround.variant)
    assert plan.tensors[tensor].storage.dtype is DType.F16
    other_edges = [edge for edge in variant.request.pins.operands if edge.node != node.name]
    assert all(plan.edges[edge].why is Reason.MEASURED for edge in other_edges), "other operands keep their width"


def test_an_operator_that_the_caller_pinned_gets_no_workaround(tmp_path: Path) -> None:
    htp, model = open_target("qnn-htp:sm8550"), graph(TWO_PRODUCTS)
    _, variant = bench_of(model, htp, W8A16, tmp_path)
    name = str(next(iter(model.graph)).name)
    variant = pinned(Pins({name: Pin(W8A16, Reason.PINNED, "--keep")}))(variant)
    located = FaultLocation(Place(PlaceKind.NODE, (name,)), name, DType.U16, 0.0, 40.0)
    assert islands(FP16).workaround(variant, located) is None
