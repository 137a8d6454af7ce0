"""Precisions and merges chosen by measurement; without a compiler, so precisions are compared in simulation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dovetail.encoding import QParams
from dovetail.plan.constraints import build_problem
from dovetail.storage import Plan, Reason
from dovetail.targets import open_target
from dovetail.targets.xnnpack.table import STATIC
from dovetail.trials.decision import Decision
from dovetail.trials.goal import ENOUGH_DB, WITHIN_DB
from dovetail.trials.knobs.float_merges import FLOAT_MERGES, GAIN_DB, SAMPLES, in_float
from dovetail.trials.variant import Variant
from dovetail.trials.workbench import Workbench
from dovetail.verify.compare import Agreement
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


def many_tokens(amplitudes: Sequence[float]) -> str:
    """Branches as in ``tokens``, each with an output of its own, with class tokens of these amplitudes."""
    random = np.random.default_rng(0)
    weight = ",".join(f"{element:.4f}" for element in random.standard_normal(64))
    token = random.standard_normal(8)
    constants = [
        f"float[1,1,8] c{i} = {{{','.join(f'{amplitude * element:.6f}' for element in token)}}}"
        for i, amplitude in enumerate(amplitudes)
    ]
    branches = [
        f"h{i} = MatMul(x, w) [join{i}] t{i} = Concat<axis=1>(c{i}, h{i}) r{i} = Slice(t{i}, one, end, one) "
        f"y{i} = MatMul(r{i}, w)"
        for i in range(len(amplitudes))
    ]
    outputs = ", ".join(f"float[1,6,8] y{i}" for i in range(len(amplitudes)))
    return f"""g (float[1,6,8] x) => ({outputs}) <float[8,8] w = {{{weight}}}, {", ".join(constants)},
        int64[1] one = {{1}}, int64[1] end = {{9}}> {{ {" ".join(branches)} }}"""


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


@pytest.mark.parametrize(
    ("amplitudes", "kept", "most_trials"), [([1.0] * 12, [], 2), ([1.0] * 7 + [100.0] + [1.0] * 4, ["join7"], 10)]
)
def test_of_many_merges_only_those_that_gain_are_tried_one_by_one(
    amplitudes: list[float], kept: list[str], most_trials: int, tmp_path: Path
) -> None:
    """The decisions are those of trying each Concat alone, on top of those before it, with fewer simulations."""
    model, target = graph(many_tokens(amplitudes)), open_target("xnnpack")
    bench, variant = bench_of(model, target, STATIC, tmp_path, available=False)
    compared: list[Variant] = []

    def compare(candidate: Variant, count: int) -> Agreement:
        if candidate not in compared:
            compared.append(candidate)
        return Workbench.compare(bench, candidate, count)

    bench.compare = compare  # type: ignore[method-assign]
    chosen, decisions = FLOAT_MERGES.decide(bench, variant)
    assert len(compared) <= most_trials
    state = variant
    for unit in build_problem(model, target.table).units:
        if len(unit.shared()) > 1:
            alone = in_float(unit, state)
            state = alone if bench.worst_db(alone, SAMPLES) - bench.worst_db(state, SAMPLES) > GAIN_DB else state
    assert chosen.request.pins == state.request.pins
    assert [str(row.place) for row in decisions] == [f"join{index}" for index in range(12)]
    assert [str(row.place) for row in decisions if row.taken == "float"] == kept
    text = r"one range for all its inputs and those of \d+ other Concats costs -?\d\.\d dB"
    assert re.match(text, decisions[0].reason)


def test_merges_are_decided_for_every_precision_separately(tmp_path: Path) -> None:
    plan, (precision, *_) = decided(tokens(100.0), tmp_path, "auto")
    figures = {row.label: row.figures["sqnr_db"] for row in precision.alternatives}
    assert {"w8a8", "w8a8-dynamic", "fp32"} <= set(figures)
    alone, alone_merges = decided(tokens(100.0), tmp_path, "w8a8")
    assert figures["w8a8"] > 20, "w8a8 is compared with its merge in float"
    assert precision.taken == plan.precision == "w8a8-dynamic"
    assert alone.precision == "w8a8"
    assert [merge.knob for merge in alone_merges] == ["merges"]


def test_the_cheapest_precision_that_is_good_enough_is_chosen(tmp_path: Path) -> None:
    plan, (decision, *_) = decided(tokens(1.0), tmp_path, "auto")
    figures = {row.label: row.figures["sqnr_db"] for row in decision.alternatives}
    enough_db = ENOUGH_DB - WITHIN_DB
    assert figures["w8a8"] < enough_db < figures["w8a8-dynamic"] < figures["fp32"]
    assert decision.taken == plan.precision == "w8a8-dynamic"
