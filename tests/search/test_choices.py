"""Precisions and merges chosen by measuring plans; nothing is lowered here, so precisions are judged in simulation."""

from __future__ import annotations

import numpy as np
import pytest
from dovetail.search.choices import Choices, choose

from dovetail.encoding import QParams
from dovetail.plan.make import make_plan
from dovetail.plan.request import Request
from dovetail.storage import Plan, Why
from dovetail.targets import open_target
from dovetail.targets.xnnpack.table import STATIC
from tests.planning import graph, noise, observe


def tokens(amplitude: float) -> str:
    """A layer, a Concat with a class token of some amplitude, a layer per token."""
    random = np.random.default_rng(0)
    weight = ",".join(f"{one:.4f}" for one in random.standard_normal(64))
    token = ",".join(f"{amplitude * one:.6f}" for one in random.standard_normal(8))
    return f"""g (float[1,6,8] x) => (float[1,6,8] y) <float[8,8] w = {{{weight}}}, float[1,1,8] c = {{{token}}},
        int64[1] one = {{1}}, int64[1] end = {{9}}>
        {{ h = MatMul(x, w) [join] t = Concat<axis=1>(c, h) r = Slice(t, one, end, one) y = MatMul(r, w) }}"""


def chosen(text: str, candidates: tuple[str, ...] = ()) -> tuple[Plan, Choices]:
    model, target = graph(text), open_target("xnnpack")
    data = noise(model)
    stats = observe(model, target, data)
    samples = [{"x": one} for one in data["x"]]
    request, choices = choose(model, target, stats, Request(STATIC), candidates, samples)
    return make_plan(model, target.table, stats, request), choices


def test_a_merge_that_costs_more_than_3_db_stays_float_and_says_so() -> None:
    plan, choices = chosen(tokens(100.0))
    (merge,) = choices.merges
    assert merge.in_float
    assert merge.float_sqnr_db - merge.shared_sqnr_db > 3
    assert not isinstance(plan.tensors["t"].storage, QParams)
    assert isinstance(plan.tensors["h"].storage, QParams), "the layer in front keeps its own range in int8"
    assert plan.tensors["t"].why is Why.MEASURED
    assert plan.tensors["t"].detail == "one range for all parts of Concat costs more than 3 dB"
    (note,) = choices.notes
    assert note.startswith("the merge 'join' stays float: one range for all its parts costs")


def test_a_merge_of_alike_parts_is_shared() -> None:
    plan, choices = chosen(tokens(1.0))
    (merge,) = choices.merges
    assert not merge.in_float
    assert choices.notes == ()
    assert plan.tensors["t"].storage == plan.tensors["h"].storage


@pytest.mark.parametrize("candidates", [("w8a8", "w8a8-dynamic"), ("w8a8-dynamic", "w8a8")])
def test_the_better_precision_is_taken_and_both_figures_said(candidates: tuple[str, ...]) -> None:
    plan, choices = chosen(tokens(1.0), candidates)
    figures = {one.precision: one.simulation_sqnr_db for one in choices.candidates}
    assert set(figures) == set(candidates)
    assert choices.precision == plan.precision == max(figures, key=lambda name: figures[name])
    assert figures["w8a8-dynamic"] > figures["w8a8"]
    assert choices.notes[0].startswith(
        "w8a8-dynamic was chosen, because its worst output is the closest to float in sim"
    )
    assert "none was run on the target" in choices.reason
