"""Second operands: switched in one session, narrow where that costs little, wide where it costs too much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from dovetail.search.operands import LOSS_DB, choose_operands

from dovetail.backend import Sample
from dovetail.config import options_from
from dovetail.encoding import DType, QParams
from dovetail.errors import InputError
from dovetail.model.session import Mode
from dovetail.op_support import W8A8, W8A16
from dovetail.plan.make import make_plan, narrower
from dovetail.plan.request import Pins, Request
from dovetail.plan.validate import validate_plan
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.simulation import load_simulation
from dovetail.qdq.switch import switched, with_switches
from dovetail.storage import Plan
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.verify.compare import compare_runs
from dovetail.verify.run import SessionRun
from tests.planning import graph, noise, observe

# Two products; the first one's result hardly reaches the output, and its K is read by somebody else too.
TWO = """
g (float[1,2,8,16] q, float[1,2,16,8] k, float[1,2,8,16] v) => (float[1,2,8,16] y, float[1,2,16,8] other)
<float small = {0.0001}>
{
    s = MatMul(q, k)
    t = Mul(s, small)
    q2 = Relu(q)
    k2 = Transpose <perm = [0, 1, 3, 2]> (q2)
    s2 = MatMul(v, k2)
    w = Add(t, s2)
    y = MatMul(w, v)
    other = Relu(k)
}
"""


@pytest.fixture
def htp() -> Target:
    return open_target("qnn-htp:sm8550")


def samples_of(model: ir.Model, count: int = 4) -> list[Sample]:
    data = noise(model, count)
    return [{name: array[i] for name, array in data.items()} for i in range(count)]


def simulated(model: ir.Model, plan: Plan, samples: list[Sample], folder: Path) -> list[Sample]:
    path = folder / "emitted.onnx"
    ir.save(emit_qdq(model, plan), path)
    return list(SessionRun(load_simulation(path), Mode.EXACT, folder)(samples))


def pair(model: ir.Model, target: Target) -> tuple[Plan, Plan]:
    stats = observe(model, target, noise(model))
    wide = make_plan(model, target.table, stats, Request(W8A16))
    pins = Pins(operands=narrower(model, target.table, stats, Request(W8A16)))
    return wide, make_plan(model, target.table, stats, Request(W8A16, pins=pins))


def test_the_planner_takes_either_width_as_asked(htp: Target) -> None:
    model = graph(TWO)
    wide, narrow = pair(model, htp)
    changed = {edge for edge in wide.edges if wide.edges[edge] != narrow.edges[edge]}
    assert {(e.node.rpartition("/")[2], e.index) for e in changed} == {("s", 1), ("s2", 1), ("y", 1)}
    assert {wide.edges[e].storage.dtype for e in changed} == {DType.S16}
    assert {narrow.edges[e].storage.dtype for e in changed} == {DType.U8}
    assert wide.tensors == narrow.tensors
    for plan in (wide, narrow):
        validate_plan(plan, model, htp.table)


def test_a_switched_edge_is_the_simulation_of_the_other_plan_to_the_bit(htp: Target, tmp_path: Path) -> None:
    model = graph(TWO)
    wide, narrow = pair(model, htp)
    edges = [edge for edge in wide.edges if wide.edges[edge] != narrow.edges[edge]]
    others = {edge: params for edge in edges if isinstance(params := narrow.edges[edge].storage, QParams)}
    path = tmp_path / "wide.onnx"
    ir.save(emit_qdq(model, wide), path)
    run = SessionRun(with_switches(load_simulation(path), others), Mode.EXACT, tmp_path)
    samples = samples_of(model)
    for on in ([], [0], [1, 2]):
        mixed = replace(wide, edges={**wide.edges, **{edges[i]: narrow.edges[edges[i]] for i in on}})
        expected = simulated(model, mixed, samples, tmp_path)
        for one, other in zip(expected, run(switched(s, len(edges), on) for s in samples), strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in ("y", "other"))


def test_an_edge_without_a_conversion_has_nothing_to_switch(htp: Target, tmp_path: Path) -> None:
    model = graph(TWO)
    wide, narrow = pair(model, htp)
    edge = next(edge for edge in wide.edges if wide.edges[edge] != narrow.edges[edge])
    params = narrow.edges[edge].storage
    assert isinstance(params, QParams)
    with pytest.raises(ValueError, match="no conversion of its own"):
        with_switches(model, {edge: params})


def test_products_turn_narrow_where_it_costs_little_and_stay_wide_where_it_costs_much(
    htp: Target, tmp_path: Path
) -> None:
    model = graph(TWO)
    samples = samples_of(model, 8)
    stats = observe(model, htp, noise(model, 8))
    plan, search = choose_operands(model, htp, stats, Request(W8A16), samples, tmp_path, lambda done, total: None)
    assert search is not None
    chosen = {row.edge.node.rpartition("/")[2]: row.chosen for row in search.operands}
    assert chosen == {"s": DType.U8, "s2": DType.S16, "y": DType.S16}
    validate_plan(plan, model, htp.table)
    exact = list(SessionRun(model, Mode.FLOAT, tmp_path)(samples))
    figures = [
        compare_runs(exact, simulated(model, one, samples, tmp_path)).sqnr_db()["y"]
        for one in (make_plan(model, htp.table, stats, Request(W8A16)), plan)
    ]
    assert figures[0] - figures[1] <= LOSS_DB
    assert search.wide_sqnr_db is not None
    reasons = [plan.edges[row.edge].detail for row in search.operands]
    assert all("second operand as" in reason and "dB" in reason for reason in reasons)


def test_a_constant_of_rank_3_is_an_operand_with_two_widths(htp: Target, tmp_path: Path) -> None:
    table = ", ".join(str(number / 64) for number in range(-24, 24))
    body = "g (float[2,3,4,8] q) => (float[2,3,4,2] y) <float[3,8,2] k = {%s}> { x = Relu(q)  y = MatMul(x, k) }"
    model = graph(body % table)
    plan, search = choose_operands(
        model, htp, observe(model, htp, noise(model)), Request(W8A16), samples_of(model), tmp_path, lambda *_: None
    )
    assert search is not None
    (row,) = search.operands
    assert (row.wide, row.narrow) == (DType.S16, DType.U8)
    assert (row.wide_sqnr_db or 0) > (row.narrow_sqnr_db or 0) + 10
    validate_plan(plan, model, htp.table)


def test_nothing_is_searched_where_there_is_nothing_to_choose(htp: Target, tmp_path: Path) -> None:
    model = graph(TWO)
    stats = observe(model, htp, noise(model))
    samples = samples_of(model)
    assert choose_operands(model, htp, stats, Request(W8A8), samples, tmp_path, lambda d, t: None)[1] is None
    old = open_target("qnn-htp:sm8450")
    plan, search = choose_operands(model, old, stats, Request(W8A16), samples, tmp_path, lambda d, t: None)
    assert search is None
    assert {c.storage.dtype for e, c in plan.edges.items() if e.node.startswith("MatMul")} == {DType.U8}


def test_another_word_for_operands_is_refused() -> None:
    with pytest.raises(InputError, match="unknown operands 'widest'; there is auto, wide and narrow"):
        options_from({"target": "qnn-htp", "operands": "widest"})
