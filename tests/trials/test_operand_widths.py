"""Widths of second MatMul operands: switched in one session, 8-bit where that costs little, else 16-bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.backend import Sample
from dovetail.config import options_from
from dovetail.encoding import DType, QParams
from dovetail.errors import InputError
from dovetail.model.session import Mode
from dovetail.op_support import W8A8, W8A16
from dovetail.plan.make import make_plan, narrower
from dovetail.plan.request import OperandPin, Pins, Request
from dovetail.plan.validate import validate_plan
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.simulation import load_simulation
from dovetail.qdq.switch import switched, with_switches
from dovetail.storage import Plan, Reason
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.trials.decision import Decision
from dovetail.trials.knobs.operand_widths import LOSS_DB, OPERAND_WIDTHS
from dovetail.verify.compare import compare_runs
from dovetail.verify.run import SessionRun
from tests.networks.small_graphs import TWO_PRODUCTS
from tests.planning import graph, noise, observe
from tests.trials.benches import bench_of, samples_of


@pytest.fixture
def htp() -> Target:
    return open_target("qnn-htp:sm8550")


def simulated(model: ir.Model, plan: Plan, samples: list[Sample], folder: Path) -> list[Sample]:
    path = folder / "emitted.onnx"
    ir.save(emit_qdq(model, plan), path)
    return list(SessionRun(load_simulation(path), Mode.EXACT, folder)(samples))


def wide_and_narrow(model: ir.Model, target: Target) -> tuple[Plan, Plan]:
    stats = observe(model, target, noise(model))
    wide = make_plan(model, target.table, stats, Request(W8A16))
    narrow = narrower(model, target.table, stats, Request(W8A16))
    pins = Pins(operands={edge: OperandPin(encoding, Reason.PINNED, "narrow") for edge, encoding in narrow.items()})
    return wide, make_plan(model, target.table, stats, Request(W8A16, pins=pins))


def decided(model: ir.Model, target: Target, folder: Path, **more: int) -> tuple[Plan, tuple[Decision, ...]]:
    bench, variant = bench_of(model, target, W8A16, folder, **more)
    variant, decisions = OPERAND_WIDTHS.decide(bench, variant)
    return bench.plan(variant), decisions


def test_the_planner_supports_both_widths(htp: Target) -> None:
    model = graph(TWO_PRODUCTS)
    wide, narrow = wide_and_narrow(model, htp)
    changed = {edge for edge in wide.edges if wide.edges[edge] != narrow.edges[edge]}
    assert {(e.node.rpartition("/")[2], e.index) for e in changed} == {("s", 1), ("s2", 1), ("y", 1)}
    assert {wide.edges[e].storage.dtype for e in changed} == {DType.S16}
    assert {narrow.edges[e].storage.dtype for e in changed} == {DType.U8}
    assert wide.tensors == narrow.tensors
    for plan in (wide, narrow):
        validate_plan(plan, model, htp.table)


def test_a_switched_edge_is_bit_identical_to_the_simulation_of_the_other_plan(htp: Target, tmp_path: Path) -> None:
    model = graph(TWO_PRODUCTS)
    wide, narrow = wide_and_narrow(model, htp)
    edges = [edge for edge in wide.edges if wide.edges[edge] != narrow.edges[edge]]
    alternatives = {edge: params for edge in edges if isinstance(params := narrow.edges[edge].storage, QParams)}
    path = tmp_path / "wide.onnx"
    ir.save(emit_qdq(model, wide), path)
    run = SessionRun(with_switches(load_simulation(path), alternatives), Mode.EXACT, tmp_path)
    samples = samples_of(model)
    for on in ([], [0], [1, 2]):
        mixed = replace(wide, edges={**wide.edges, **{edges[i]: narrow.edges[edges[i]] for i in on}})
        expected = simulated(model, mixed, samples, tmp_path)
        outputs = run(switched(sample, len(edges), on) for sample in samples)
        for expected_sample, output in zip(expected, outputs, strict=True):
            assert all(np.array_equal(expected_sample[name], output[name]) for name in ("y", "other"))


def test_an_edge_without_a_qdq_pair_cannot_be_switched(htp: Target, tmp_path: Path) -> None:
    model = graph(TWO_PRODUCTS)
    wide, narrow = wide_and_narrow(model, htp)
    edge = next(edge for edge in wide.edges if wide.edges[edge] != narrow.edges[edge])
    params = narrow.edges[edge].storage
    assert isinstance(params, QParams)
    with pytest.raises(ValueError, match=f"edge '{edge}' has no Q/DQ pair of its own"):
        with_switches(model, {edge: params})


def test_operands_are_8_bit_where_it_costs_little_and_16_bit_where_it_costs_much(htp: Target, tmp_path: Path) -> None:
    model = graph(TWO_PRODUCTS)
    samples = samples_of(model, 8)
    plan, (together, *decisions) = decided(model, htp, tmp_path, count=8)
    assert [decision.taken for decision in decisions] == ["uint8", "int16", "int16"]
    assert together.taken == "1 of 3 operands 8-bit"
    labels = {alternative.label for alternative in together.alternatives}
    assert labels == {"all operands 16-bit", "1 of 3 operands 8-bit"}
    validate_plan(plan, model, htp.table)
    exact = list(SessionRun(model, Mode.FLOAT, tmp_path)(samples))
    wide = make_plan(model, htp.table, observe(model, htp, noise(model, 8)), Request(W8A16))
    wide_db, chosen_db = (
        compare_runs(exact, simulated(model, compared, samples, tmp_path)).sqnr_db()["y"] for compared in (wide, plan)
    )
    assert wide_db - chosen_db <= LOSS_DB
    measured = [choice for choice in plan.edges.values() if choice.why is Reason.MEASURED]
    assert len(measured) == 3
    assert all("second operand as" in choice.detail and "dB" in choice.detail for choice in measured)


def test_a_constant_of_rank_3_is_an_operand_with_two_widths(htp: Target, tmp_path: Path) -> None:
    table = ", ".join(str(number / 64) for number in range(-24, 24))
    body = "g (float[2,3,4,8] q) => (float[2,3,4,2] y) <float[3,8,2] k = {%s}> { x = Relu(q)  y = MatMul(x, k) }"
    model = graph(body % table)
    plan, (_, row) = decided(model, htp, tmp_path)
    figures = {alternative.label: alternative.figures["sqnr_db"] for alternative in row.alternatives}
    assert list(figures) == ["int16", "uint8"]
    assert figures["int16"] > figures["uint8"] + 10
    validate_plan(plan, model, htp.table)


def test_nothing_is_decided_if_only_one_width_is_supported(htp: Target, tmp_path: Path) -> None:
    model = graph(TWO_PRODUCTS)
    bench, variant = bench_of(model, htp, W8A8, tmp_path)
    assert OPERAND_WIDTHS.decide(bench, variant) == (variant, ())
    plan, decisions = decided(model, open_target("qnn-htp:sm8450"), tmp_path)
    assert decisions == ()
    assert {c.storage.dtype for e, c in plan.edges.items() if e.node.startswith("MatMul")} == {DType.U8}


@pytest.mark.parametrize(("wish", "dtype"), [("16", DType.S16), ("8", DType.U8)])
def test_the_caller_may_fix_the_width(wish: str, dtype: DType, htp: Target, tmp_path: Path) -> None:
    model = graph(TWO_PRODUCTS)
    bench, variant = bench_of(model, htp, W8A16, tmp_path, knob_options={"operands": wish})
    variant, decisions = OPERAND_WIDTHS.decide(bench, variant)
    edges = bench.plan(variant).edges
    assert decisions == ()
    assert {c.storage.dtype for e, c in edges.items() if e.node.startswith("MatMul") and e.index == 1} == {dtype}


def test_another_width_is_refused() -> None:
    with pytest.raises(InputError, match="--operand-bits 12: expected one of auto, 16, 8"):
        options_from({"target": "qnn-htp", "operand_bits": "12"})


def test_a_width_may_be_a_number_and_the_old_option_names_the_new_one() -> None:
    assert options_from({"target": "qnn-htp", "operand_bits": 8}).operand_bits == "8"
    with pytest.raises(
        InputError, match="option 'operands' was renamed: use operand_bits, 16 for wide and 8 for narrow"
    ):
        options_from({"target": "qnn-htp", "operands": "narrow"})
