"""Sensitivity: subjects, measured costs, the first-order estimate, and ranks."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dovetail.finding import Place, PlaceKind
from dovetail.float_graph import prepared
from dovetail.model.ranked import ranked_outputs
from dovetail.model.read import read
from dovetail.plan.constraints import build_problem
from dovetail.plan.elements import Element, ElementKind, elements_of
from dovetail.targets import open_target
from dovetail.trials.sensitivity.first_order import estimate
from dovetail.trials.sensitivity.measure import Calls, Cost, add_call, cost_of, measure
from dovetail.trials.sensitivity.metric import measure_metric
from dovetail.trials.sensitivity.rank import differs, drop_of, ranks, ranks_by_drop, resolution_of
from dovetail.trials.sensitivity.subjects import Level, Part, block_of, operators, subjects_of
from dovetail.verify.segmented import SegmentedSimulation
from dovetail.verify.verdicts import MAX_SQNR_DB
from dovetail.zoo import load
from tests.planning import graph, planned


def _element(kind: ElementKind, unit: str, tensor: str, node: str = "") -> Element:
    return Element(kind, unit, Place(PlaceKind.TENSOR, (node,) if node else (), tensor, "Op" if node else ""))


ELEMENTS = (
    _element(ElementKind.ACTIVATIONS, "", "image"),
    _element(ElementKind.WEIGHTS, "u1", "a", "layers.0/MatMul"),
    _element(ElementKind.ACTIVATIONS, "u1", "a", "layers.0/MatMul"),
    _element(ElementKind.ACTIVATIONS, "u2", "b", "layers.0/MatMul"),
    _element(ElementKind.WEIGHTS, "u3", "c", "layers.1/Gemm"),
)


def test_subjects_are_the_model_then_blocks_then_operators_with_their_parts() -> None:
    subjects = subjects_of(ELEMENTS)
    shown = [(s.level, s.name, s.part, sorted(s.elements), s.whole) for s in subjects if s.level is not Level.MODEL]
    assert [s.elements for s in subjects[:3]] == [{0, 1, 2, 3, 4}, {1, 4}, {0, 2, 3}]
    assert shown == [
        (Level.BLOCK, "layers.0", Part.BOTH, [1, 2, 3], True),
        (Level.BLOCK, "layers.0", Part.WEIGHTS, [1], False),
        (Level.BLOCK, "layers.0", Part.ACTIVATIONS, [2, 3], False),
        (Level.BLOCK, "layers.1", Part.WEIGHTS, [4], True),
        (Level.OPERATOR, "image", Part.ACTIVATIONS, [0], True),
        (Level.OPERATOR, "layers.0/MatMul", Part.BOTH, [1, 2], True),
        (Level.OPERATOR, "layers.0/MatMul", Part.WEIGHTS, [1], False),
        (Level.OPERATOR, "layers.0/MatMul", Part.ACTIVATIONS, [2], False),
        (Level.OPERATOR, "layers.0/MatMul", Part.ACTIVATIONS, [3], True),
        (Level.OPERATOR, "layers.1/Gemm", Part.WEIGHTS, [4], True),
    ]


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("decoder.layers.3.attn/MatMul", "decoder.layers.3"),
        ("/stage2/Conv", "/stage2"),
        ("/encoder/layer.11/output/dense/MatMul", "/encoder/layer.11"),
        ("MatMul_12", None),
        ("head/Gemm", None),
        ("/Conv2d/weight", None),
    ],
)
def test_a_block_is_the_name_up_to_its_first_number(name: str, block: str | None) -> None:
    assert block_of([name]) == block


def test_equal_ranks_where_the_samples_do_not_tell_apart() -> None:
    low, near = Cost("y", (10.0, 20.0, 30.0, 20.0)), Cost("y", (11.0, 19.0, 31.0, 20.0))
    high = Cost("y", (13.0, 23.0, 33.0, 23.1))
    # Paired: a constant difference counts although the spread over samples is larger than it.
    assert differs(low, high)
    assert not differs(low, near)
    assert ranks([high, near, low]) == [3, 1, 1]


def test_two_samples_need_a_large_difference() -> None:
    # 3 standard errors: Student's t with one degree of freedom needs 12.7.
    assert not differs(Cost("y", (10.0, 10.0)), Cost("y", (12.0, 14.0)))
    assert differs(Cost("y", (10.0, 10.0)), Cost("y", (13.0, 13.1)))
    assert not differs(Cost("y", (10.0,)), Cost("y", (10.9,)))
    assert differs(Cost("y", (10.0,)), Cost("y", (11.1,)))


def test_differences_above_float32_rounding_do_not_count() -> None:
    assert not differs(Cost("y", (120.0, 121.0, 119.0)), Cost("y", (MAX_SQNR_DB,) * 3))


def test_false_positives_are_rare() -> None:
    random = np.random.default_rng(0)
    for count in (2, 3, 8, 40):
        pairs = [random.normal(30, 3, (2, count)) for _ in range(400)]
        share = sum(differs(Cost("y", tuple(a)), Cost("y", tuple(b))) for a, b in pairs) / len(pairs)
        assert 0.015 < share < 0.09, count


def test_costs_of_outputs_with_and_without_the_batch_axis_are_comparable() -> None:
    per_sample, per_call = Cost("y", (10.0, 12.0, 30.0, 32.0)), Cost("s", (11.0, 31.0))
    assert not differs(per_sample, per_call)
    assert ranks([per_sample, per_call]) == [1, 1]


def test_ranks_by_the_drop_of_a_metric() -> None:
    costs = [Cost("y", (db,)) for db in (50.0, 10.0, 20.0, 30.0, 40.0)]
    drops = [0.2, 0.0, 0.1, math.nan, 0.105]
    assert ranks_by_drop(drops, costs, 0.01) == [2, 5, 3, 1, 3]
    assert resolution_of({"top1": 0.9956}, "top1", 450) == pytest.approx(1 / 450)
    one_wrong = 0.9956 - 0.9933333
    assert ranks_by_drop([one_wrong, 0.0], costs[:2], 1 / 450) == [1, 2]
    assert ranks_by_drop([1 / 450, 0.0], costs[:2], 1 / 450) == [1, 1]
    assert drop_of(0.9, 1.0, lower_is_better=False) == pytest.approx(0.1)
    assert drop_of(2.5, 2.0, lower_is_better=True) == pytest.approx(0.5)


def test_an_output_that_is_nan_or_of_another_shape_costs_most() -> None:
    calls = Calls(list, 1, per_call=2)
    figures: dict[str, list[float]] = {}
    exact = {"y": np.ones((2, 3), np.float32), "n": np.ones((2, 3), np.float32), "i": np.ones((2,), np.int64)}
    add_call(figures, exact, {**exact, "y": np.full((2, 3), np.nan, np.float32), "n": np.ones((1, 3))}, calls)
    assert figures == {"y": [-MAX_SQNR_DB] * 2, "n": [-MAX_SQNR_DB] * 2}
    assert cost_of({}) == Cost("", (MAX_SQNR_DB,))


def test_rows_of_a_topk_that_are_mostly_others_count() -> None:
    exact = {"y": np.arange(1, 9, dtype=np.float32).reshape(1, 8, 1)}
    other = {"y": exact["y"] * np.array([1, 1, 50, 60, 70, 80, 90, 99], np.float32).reshape(1, 8, 1)}
    figures: dict[str, list[float]] = {}
    add_call(figures, exact, other, Calls(list, 1, ranked={"y": 1}))
    assert figures["y"][0] < 0


@pytest.mark.parametrize(
    ("name", "target_name", "precision", "least"),
    [
        ("vit_digits", "ort-cpu", "w8a8", 0.75),
        ("vit_digits", "qnn-htp:sm8550", "w8a16", 0.9),
        ("detector_scenes", "ort-cpu", "w8a8", 0.9),
    ],
)
def test_the_first_order_estimate_ranks_as_measured(
    name: str, target_name: str, precision: str, least: float, tmp_path: Path
) -> None:
    target, shipped = open_target(target_name), load(name)
    model = prepared(read(shipped.model_path, {}), target)
    images = shipped.calib()[shipped.input_name]
    plan = planned(model, target, target.table.precisions[precision], data={shipped.input_name: images[:4, None]})
    elements = elements_of(build_problem(model, target.table), plan)
    subjects = list(operators(elements))
    samples = [{shipped.input_name: image[None]} for image in images[4:7]]
    calls = Calls(lambda: samples, len(samples), ranked=ranked_outputs(model.graph))
    simulation = SegmentedSimulation(model, plan, elements, tmp_path)
    seen: list[tuple[int, int | None]] = []
    exact = measure(simulation, calls, subjects, lambda done, total: seen.append((done, total)))
    assert seen == [(done, len(samples) * len(subjects)) for done in range(len(samples) * len(subjects))]
    estimated = estimate(simulation, calls, subjects)
    assert estimated == estimate(simulation, calls, subjects), "not deterministic"
    first, second = (np.argsort(np.argsort([cost.mean_db for cost in costs])) for costs in (exact, estimated))
    assert np.corrcoef(first, second)[0, 1] > least


def test_an_element_that_makes_a_tensor_infinite_is_estimated_to_cost_most(tmp_path: Path) -> None:
    """A small divisor is rounded to zero; 24 further nodes put the output into another segment."""
    chain = " ".join(f"t{number} = Abs({f't{number - 1}' if number else 'q'})" for number in range(24))
    eye = "{1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}"
    model = graph(
        f"""g (float[1,4] x) => (float[1,4] y) <float[1] one = {{1}}, float[4,4] w = {eye}>
        {{ a = MatMul(x, w)  q = Div(one, a)  {chain}  y = Abs(t23) }}"""
    )
    target = open_target("ort-cpu")
    data = {"x": np.array([[[1e-4, 1, 50, 100]]], np.float32)}
    plan = planned(model, target, data=data)
    elements = elements_of(build_problem(model, target.table), plan)
    simulation = SegmentedSimulation(model, plan, elements, tmp_path)
    assert len(simulation.segments) > 1
    subjects = list(operators(elements))
    costs = estimate(simulation, Calls(lambda: [{"x": data["x"][0]}], 1), subjects)
    lost = {name for s, cost in zip(subjects, costs, strict=True) if cost.mean_db == -MAX_SQNR_DB for name in s.tensors}
    assert lost & {"x", "a"}


def test_the_metric_sees_each_subject_alone_and_reports_real_progress(tmp_path: Path) -> None:
    model = graph("g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1,2,3,4.5}> { a = MatMul(x, w)  y = Relu(a) }")
    target = open_target("ort-cpu")
    plan = planned(model, target)
    elements = elements_of(build_problem(model, target.table), plan)
    simulation = SegmentedSimulation(model, plan, elements, tmp_path)
    samples = [{"x": np.array([[value, 0.3]], np.float32)} for value in (0.1, 0.7)]
    subjects = list(operators(elements))
    seen: list[tuple[int, int | None]] = []
    in_float, quantized = measure_metric(
        simulation,
        subjects,
        lambda run: {"sum": float(sum(outputs["y"].sum() for outputs in run(samples)))},
        len(samples),
        lambda done, total: seen.append((done, total)),
    )
    total = 2 * (len(subjects) + 1)
    assert seen == [(done, total) for done in range(total)]
    for subject, figures in zip(subjects, quantized, strict=True):
        expected = sum(
            simulation.outputs(simulation.float_activations(s), subject.elements)["y"].sum() for s in samples
        )
        assert figures["sum"] == pytest.approx(float(expected))
    assert any(figures["sum"] != in_float["sum"] for figures in quantized)
