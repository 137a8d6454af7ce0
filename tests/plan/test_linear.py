"""Planning time is linear in the size of the graph, counted in calls, which do not depend on the machine's load."""

from __future__ import annotations

import cProfile
import pstats

import pytest

from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.stats import DataInfo, Stats, TensorStats
from dovetail.targets import open_target
from tests.networks.attention_blocks import blocks


def calls(target_name: str, precision: str, count: int) -> int:
    target, model = open_target(target_name), blocks(count)
    stats = Stats({name: TensorStats(-1.0, 2.0) for name in observed(model, target.table)}, DataInfo("", 1, ""))
    request = Request(target.table.precisions[precision])
    profile = cProfile.Profile()
    profile.runcall(make_plan, model, target.table, stats, request)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("target", "precision"),
    [("ort-cpu", "w8a8"), ("qnn-htp:sm8550", "w8a16"), ("xnnpack", "w8a8"), ("tensorrt:sm89", "fp8")],
)
def test_twice_the_graph_takes_twice_the_calls(target: str, precision: str) -> None:
    small, large = (calls(target, precision, count) for count in (20, 40))
    assert large < 2.1 * small
