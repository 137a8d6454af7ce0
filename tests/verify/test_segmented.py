"""Switching elements of a plan on in a segmented float graph computes what the rebuilt QDQ graph computes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.backend import Sample
from dovetail.encoding import Array
from dovetail.float_graph import prepared
from dovetail.model.read import read
from dovetail.model.session import Mode
from dovetail.numerics.metrics import Comparison
from dovetail.plan.constraints import build_problem
from dovetail.plan.elements import Element, elements_of, only
from dovetail.qdq.emit import emit_qdq
from dovetail.storage import Plan
from dovetail.targets import open_target
from dovetail.verify.run import SessionRun
from dovetail.verify.segmented import SegmentedSimulation
from dovetail.zoo import load
from tests.planning import graph, noise, planned


def _simulated(
    body: str, folder: Path, target_name: str = "ort-cpu", precision: str = "w8a8"
) -> tuple[ir.Model, Plan, tuple[Element, ...], SegmentedSimulation, Sample]:
    model, target = graph(body), open_target(target_name)
    plan = planned(model, target, target.table.precisions[precision])
    elements = elements_of(build_problem(model, target.table), plan)
    sample = {name: array[0] for name, array in noise(model, 1).items()}
    return model, plan, elements, SegmentedSimulation(model, plan, elements, folder), sample


def _rebuilt(model: ir.Model, plan: Plan, elements: Iterable[Element], sample: Sample, folder: Path) -> Sample:
    (outputs,) = SessionRun(emit_qdq(model, only(plan, elements)), Mode.EXACT, folder)([sample])
    return outputs


def _assert_same(outputs: Mapping[str, Array], expected: Mapping[str, Array], exact: Mapping[str, Array]) -> None:
    """The error of a quantized element is the same: the difference is far below the error itself."""
    assert outputs.keys() == expected.keys()
    for name, array in outputs.items():
        error = expected[name].astype(np.float64) - exact[name]
        largest = float(np.abs(error).max(initial=0.0))
        difference = np.abs(array.astype(np.float64) - expected[name]).max(initial=0.0)
        scale = float(np.abs(expected[name]).max(initial=1e-6))
        assert difference <= max(0.05 * largest, 2e-5 * scale), (name, difference, largest)


@pytest.mark.parametrize(
    ("name", "target_name", "precision", "step"),
    [
        ("vit_digits", "ort-cpu", "w8a8", 1),
        ("vit_digits", "qnn-htp:sm8550", "w8a16", 3),
        ("vit_digits", "qnn-htp:sm8550", "w8a8", 5),
        ("vit_digits", "tensorrt:sm89", "fp8", 3),
        ("vit_digits", "xnnpack", "w8a8", 3),
        ("vit_digits", "xnnpack", "w8a8-dynamic", 5),
        ("detector_scenes", "ort-cpu", "w8a8", 12),
        ("detector_scenes", "qnn-htp:sm8550", "w8a16", 12),
    ],
)
def test_the_shipped_models(name: str, target_name: str, precision: str, step: int, tmp_path: Path) -> None:
    target, shipped = open_target(target_name), load(name)
    model = prepared(read(shipped.model_path, {}), target)
    images = shipped.calib()[shipped.input_name]
    plan = planned(model, target, target.table.precisions[precision], data={shipped.input_name: images[:4, None]})
    elements = elements_of(build_problem(model, target.table), plan)
    sample = {shipped.input_name: images[4:5]}
    simulation = SegmentedSimulation(model, plan, elements, tmp_path)
    exact = simulation.float_activations(sample)
    for number in range(0, len(elements), step):
        expected = _rebuilt(model, plan, [elements[number]], sample, tmp_path)
        _assert_same(simulation.outputs(exact, {number}), expected, exact.outputs)
    whole = _rebuilt(model, plan, elements, sample, tmp_path)
    for output, array in simulation.outputs(exact, range(len(elements))).items():
        noise_db = Comparison.of(exact.outputs[output], whole[output]).sqnr_db
        assert Comparison.of(whole[output], array).sqnr_db > noise_db + 10, output
    for output, array in simulation.outputs(exact, ()).items():
        np.testing.assert_array_equal(array, exact.outputs[output])


_GRAPHS = {
    "an output that is quantized and read again": """g (float[1,4] x) => (float[1,4] a, float[1,4] y)
        <float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> { a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, w) }""",
    "an input that is an output": """g (float[1,4] x) => (float[1,4] x, float[1,4] y)
        <float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> { y = MatMul(x, w) }""",
    "one node": "g (float[1,4] x, float[4,1] z) => (float[1,1] y) { y = MatMul(x, z) }",
    "a batch of four, and an output without its axis": """g (float[4,4] x) => (float[4,2] y, float[1,1] s)
        <float[4,2] w = {1,2,3,4,5,6,7,8}> { y = MatMul(x, w)  z = Relu(y)  s = ReduceMean<keepdims=1>(z) }""",
    "topk": """g (float[1,8] x) => (float[1,3] v, int64[1,3] i) <int64[1] k = {3}, float[8,8] w = {1,2,3,4,5,6,7,8,
        8,7,6,5,4,3,2,1,1,1,2,2,3,3,4,4,5,5,6,6,7,7,8,8,1,3,5,7,2,4,6,8,9,8,7,6,1,2,3,4,3,2,1,3,2,1,3,2,5,4,3,2,1,2,3,4}>
        { a = MatMul(x, w)  b = Relu(a)  v, i = TopK(b, k) }""",
    "a subgraph that reads a quantized tensor": """g (float[1,4] x) => (float[1,4] y) <float zero = {0},
        float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> { a = MatMul(x, w)  b = Relu(a)  s = ReduceSum<keepdims=0>(b)
        p = Greater(s, zero)  y = If (p) <then_branch = t () => (float[1,4] u) { u = Exp(a) },
        else_branch = e () => (float[1,4] q) { q = Tanh(b) }> }""",
}


@pytest.mark.parametrize("label", _GRAPHS)
def test_small_graphs(label: str, tmp_path: Path) -> None:
    model, plan, elements, simulation, sample = _simulated(_GRAPHS[label], tmp_path)
    exact = simulation.float_activations(sample)
    assert elements
    for on in [*({number} for number in range(len(elements))), set(range(len(elements)))]:
        expected = _rebuilt(model, plan, [elements[number] for number in on], sample, tmp_path)
        for name, array in simulation.outputs(exact, on).items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5, err_msg=f"{name} {on}")


def test_only_what_depends_on_a_change_is_computed_again(tmp_path: Path) -> None:
    weights = ",".join(f"0.{number % 9 + 1}" for number in range(16))
    body = f"g (float[1,4] x) => (float[1,4] y) <float[4,4] w = {{{weights}}}> {{ "
    names = ["x", *(f"t{number}" for number in range(24)), "y"]
    body += "  ".join(f"{after} = MatMul({before}, w)" for before, after in itertools.pairwise(names)) + " }"
    _, _, elements, simulation, sample = _simulated(body, tmp_path)
    assert len(simulation.segments) == 2
    last = len(elements) - 1
    state = simulation.until(simulation.float_activations(sample), {last})
    assert state.changed.keys() == set(simulation.segments[-1].outputs)
