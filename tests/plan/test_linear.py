"""Planning time is linear in the size of the graph, counted in calls, which do not depend on the machine's load."""

from __future__ import annotations

import cProfile
import pstats

import onnx_ir as ir
import pytest

from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.stats import DataInfo, Stats, TensorStats
from dovetail.targets import open_target
from tests.networks.attention_blocks import blocks
from tests.planning import graph


def merges(count: int) -> ir.Model:
    """Blocks in which the output of a Conv and Relu has a second consumer and is merged with negative numbers."""
    nodes = [
        f"c{i} = Conv(x{i}, w)  r{i} = Relu(c{i})  n{i} = Conv(r{i}, w)  m{i} = Concat<axis=1>(r{i}, n{i})"
        f"  x{i + 1} = Conv(m{i}, v)"
        for i in range(count)
    ]
    weights = "float[1,1,1,1] w = {2}, float[1,2,1,1] v = {1, 1}"
    return graph(f"g (float[1,1,2,2] x0) => (float[1,1,2,2] x{count}) <{weights}> {{ {'  '.join(nodes)} }}")


def calls(target_name: str, precision: str, model: ir.Model) -> int:
    target = open_target(target_name)
    lows = {name: 0.0 if name.startswith("r") else -1.0 for name in observed(model, target.table)}
    stats = Stats({name: TensorStats(low, 2.0) for name, low in lows.items()}, DataInfo("", 1, ""))
    request = Request(target.table.precisions[precision])
    profile = cProfile.Profile()
    profile.runcall(make_plan, model, target.table, stats, request)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("target", "precision"),
    [("ort-cpu", "w8a8"), ("qnn-htp:sm8550", "w8a16"), ("xnnpack", "w8a8"), ("tensorrt:sm89", "fp8")],
)
def test_twice_the_graph_takes_twice_the_calls(target: str, precision: str) -> None:
    small, large = (calls(target, precision, blocks(count)) for count in (20, 40))
    assert large < 2.1 * small


def test_twice_the_merges_take_twice_the_calls() -> None:
    small, large = (calls("qnn-htp:sm8550", "w8a16", merges(count)) for count in (20, 40))
    assert large < 2.1 * small
