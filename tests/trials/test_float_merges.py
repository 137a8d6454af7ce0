"""Precisions and merges chosen by measuring plans; nothing is lowered here, so precisions are judged in simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dovetail.encoding import QParams
from dovetail.storage import Plan, Reason
from dovetail.targets import open_target
from dovetail.targets.xnnpack.table import STATIC
from dovetail.trials.decision import Decision
from tests.planning import graph
from tests.trials.benches import bench_of


def tokens(amplitude: float) -> str:
    """A layer, a Concat with a class token of some amplitude, a layer per token."""
    random = np.random.default_rng(0)
    weight = ",".join(f"{one:.4f}" for one in random.standard_normal(64))
    token = ",".join(f"{amplitude * one:.6f}" for one in random.standard_normal(8))
    return f"""g (float[1,6,8] x) => (float[1,6,8] y) <float[8,8] w = {{{weight}}}, float[1,1,8] c = {{{token}}},
        int64[1] one = {{1}}, int64[1] end = {{9}}>
        {{ h = MatMul(x, w) [join] t = Concat<axis=1>(c, h) r = Slice(t, one, end, one) y = MatMul(r, w) }}"""


def decided(text: str, folder: Path, precision: str = "w8a8") -> tuple[Plan, tuple[Decision, ...]]:
    """No compiler: precisions are judged in simulation."""
    model, target = graph(text), open_target("xnnpack")
    bench, variant = bench_of(model, target, STATIC, folder, available=False, wishes={"precision": precision})
    (knob,) = target.knobs
    variant, decisions = knob.decide(bench, variant)
    return bench.plan(variant), decisions


def test_a_merge_that_costs_more_than_3_db_stays_float_and_says_so(tmp_path: Path) -> None:
    plan, (merge,) = decided(tokens(100.0), tmp_path)
    shared, in_float = (one.figures["simulation_sqnr_db"] for one in merge.alternatives)
    assert (merge.knob, str(merge.place), merge.taken) == ("merges", "join", "float")
    assert in_float - shared > 3
    assert not isinstance(plan.tensors["t"].storage, QParams)
    assert isinstance(plan.tensors["h"].storage, QParams), "the layer in front keeps its own range in int8"
    assert plan.tensors["t"].why is Reason.MEASURED
    assert plan.tensors["t"].detail == "one range for all parts of Concat costs more than 3 dB"
    assert merge.reason.startswith("one range for all its inputs costs")


def test_a_merge_of_alike_parts_is_shared(tmp_path: Path) -> None:
    plan, (merge,) = decided(tokens(1.0), tmp_path)
    assert merge.taken == "one range for all inputs"
    assert plan.tensors["t"].storage == plan.tensors["h"].storage


def test_merges_are_decided_for_every_precision_on_its_own(tmp_path: Path) -> None:
    plan, (precision, *merges) = decided(tokens(100.0), tmp_path, "auto")
    figures = {one.label: one.figures["simulation_sqnr_db"] for one in precision.alternatives}
    assert set(figures) == {"w8a8", "w8a8-dynamic"}
    alone, _ = decided(tokens(100.0), tmp_path, "w8a8")
    assert figures["w8a8"] > 20, "w8a8 is compared with its merge in float"
    assert precision.taken == plan.precision == max(figures, key=lambda name: figures[name])
    assert alone.precision == "w8a8"
    assert all(merge.knob == "merges" for merge in merges)


def test_the_better_precision_is_taken_and_both_figures_said(tmp_path: Path) -> None:
    plan, (decision, *_) = decided(tokens(1.0), tmp_path, "auto")
    figures = {one.label: one.figures["simulation_sqnr_db"] for one in decision.alternatives}
    assert figures["w8a8-dynamic"] > figures["w8a8"]
    assert decision.taken == plan.precision == "w8a8-dynamic"
    assert decision.reason.startswith("its worst output is the closest to float in simulation")
    assert "none was run on the target" in decision.reason
