"""Precisions and merges chosen by measurement; without a compiler, so precisions are compared in simulation."""

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
    """A layer, a Concat with a class token of this amplitude, a layer per token."""
    random = np.random.default_rng(0)
    weight = ",".join(f"{element:.4f}" for element in random.standard_normal(64))
    token = ",".join(f"{amplitude * element:.6f}" for element in random.standard_normal(8))
    return f"""g (float[1,6,8] x) => (float[1,6,8] y) <float[8,8] w = {{{weight}}}, float[1,1,8] c = {{{token}}},
        int64[1] one = {{1}}, int64[1] end = {{9}}>
        {{ h = MatMul(x, w) [join] t = Concat<axis=1>(c, h) r = Slice(t, one, end, one) y = MatMul(r, w) }}"""


def decided(text: str, folder: Path, precision: str = "w8a8") -> tuple[Plan, tuple[Decision, ...]]:
    """The plan and the decisions of the target's knob, without a compiler."""
    model, target = graph(text), open_target("xnnpack")
    bench, variant = bench_of(model, target, STATIC, folder, available=False, knob_options={"precision": precision})
    (knob,) = target.knobs
    variant, decisions = knob.decide(bench, variant)
    return bench.plan(variant), decisions


def test_a_merge_that_costs_more_than_3_db_is_kept_in_float_with_the_reason(tmp_path: Path) -> None:
    plan, (merge,) = decided(tokens(100.0), tmp_path)
    shared, in_float = (alternative.figures["simulation_sqnr_db"] for alternative in merge.alternatives)
    assert (merge.knob, str(merge.place), merge.taken) == ("merges", "join", "float")
    assert in_float - shared > 3
    assert not isinstance(plan.tensors["t"].storage, QParams)
    assert isinstance(plan.tensors["h"].storage, QParams), "the layer before it keeps its own range in int8"
    assert plan.tensors["t"].why is Reason.MEASURED
    assert plan.tensors["t"].detail == "one range for all inputs of Concat costs more than 3 dB"
    assert merge.reason.startswith("one range for all its inputs costs")


def test_a_merge_of_inputs_with_similar_ranges_is_shared(tmp_path: Path) -> None:
    plan, (merge,) = decided(tokens(1.0), tmp_path)
    assert merge.taken == "one range for all inputs"
    assert plan.tensors["t"].storage == plan.tensors["h"].storage


def test_merges_are_decided_for_every_precision_separately(tmp_path: Path) -> None:
    plan, (precision, *merges) = decided(tokens(100.0), tmp_path, "auto")
    figures = {row.label: row.figures["simulation_sqnr_db"] for row in precision.alternatives}
    assert set(figures) == {"w8a8", "w8a8-dynamic"}
    alone, _ = decided(tokens(100.0), tmp_path, "w8a8")
    assert figures["w8a8"] > 20, "w8a8 is compared with its merge in float"
    assert precision.taken == plan.precision == max(figures, key=lambda name: figures[name])
    assert alone.precision == "w8a8"
    assert all(merge.knob == "merges" for merge in merges)


def test_the_better_precision_is_chosen_and_both_figures_are_recorded(tmp_path: Path) -> None:
    plan, (decision, *_) = decided(tokens(1.0), tmp_path, "auto")
    figures = {row.label: row.figures["simulation_sqnr_db"] for row in decision.alternatives}
    assert figures["w8a8-dynamic"] > figures["w8a8"]
    assert decision.taken == plan.precision == "w8a8-dynamic"
    assert decision.reason.startswith("its worst output is the closest to float in simulation")
    assert "none was run on the target" in decision.reason
