"""Operators of a repaired model that are kept in float, because with them quantized it is worse than as given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import dovetail
from dovetail.backend import MODEL, Artifact, CompileResult, Runner, Sample
from dovetail.edge import Edge
from dovetail.encoding import DType, QParams
from dovetail.errors import BackendError
from dovetail.finding import Status, Verdict
from dovetail.numerics.metrics import sqnr_db
from dovetail.op_support import W8A8
from dovetail.plan.request import Pin, Pins
from dovetail.qdq.quantized_io import RunSamples
from dovetail.report.result import Result
from dovetail.storage import Plan, Reason
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.trials.decision import Decision
from dovetail.trials.knobs import float_units
from dovetail.trials.policy import longer_prefix, shortest_prefix
from dovetail.trials.variant import pinned
from dovetail.verify.repaired import Margin
from tests.equality import model_from
from tests.planning import graph
from tests.trials.benches import bench_of

ORT_CPU = open_target("ort-cpu")
RANDOM = np.random.default_rng(0)
WEIGHTS = {name: (RANDOM.standard_normal((16, 16)) / 4).astype(np.float32) for name in ("w1", "w2", "w3")}
DATA = {"x": RANDOM.standard_normal((40, 1, 8, 16)).astype(np.float32)}
# The Relu's output is uint8 from 0 on, everything else symmetric int8: in int8 only its step is twice as large.
LAYERS = """g (float[1,8,16] x) => (float[1,8,16] y)
{ %s [first] h = MatMul(xd, w1d) r = Relu(h) %s [second] k = MatMul(rd, w2d) %s [third] y = MatMul(kd, w3d) }"""
FLOAT = LAYERS % ("xd = Identity(x)", "rd = Identity(r)", "kd = Identity(k)")


def pair(name: str, scale: str, zero: str) -> str:
    return f"{name}q = QuantizeLinear({name}, {scale}, {zero}) {name}d = DequantizeLinear({name}q, {scale}, {zero})"


def saved(folder: Path, text: str, **constants: np.ndarray | np.generic) -> tuple[Path, Path]:
    """A model with these Q/DQ pairs and int8 weights, and the float model that it was quantized from."""
    steps = {name: np.float32(np.abs(weight).max() / 127) for name, weight in WEIGHTS.items()}
    integers = {f"{n}i": np.rint(w / steps[n]).astype(np.int8) for n, w in WEIGHTS.items()}
    weights = " ".join(f"{n}d = DequantizeLinear({n}i, {n}s)" for n in WEIGHTS)
    scales = {f"{name}s": step for name, step in steps.items()}
    quantized = model_from(text.replace("{ ", f"{{ {weights} ", 1), **integers, **scales, **constants)
    plain = " ".join(f"{n}d = Identity({n})" for n in WEIGHTS)
    exact = model_from(FLOAT.replace("{ ", f"{{ {plain} ", 1), **WEIGHTS)
    ir.save(quantized, folder / "quantized.onnx")
    ir.save(exact, folder / "float.onnx")
    return folder / "quantized.onnx", folder / "float.onnx"


def with_uint8(folder: Path) -> tuple[Path, Path]:
    text = LAYERS % (pair("x", "s", "z"), pair("r", "u", "v"), pair("k", "t", "z"))
    constants = {"s": np.float32(4.5 / 127), "u": np.float32(4.5 / 255), "t": np.float32(4 / 127)}
    return saved(folder, text, **constants, z=np.int8(0), v=np.uint8(0))


def repaired(folder: Path, target: str, calibration: object = DATA) -> Result:
    quantized, exact = with_uint8(folder)
    return dovetail.repair(
        quantized, target=target, calibration=calibration, output=folder / "run", float_model=exact, precision="w8a8"
    )


def test_only_the_operator_that_loses_by_its_type_is_kept_in_float(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")
    result = repaired(tmp_path, "tensorrt:sm89")
    assert result.verdicts["repaired"].status is Status.PASS
    together, second = result.decisions
    assert (together.knob, together.taken, together.is_whole) == ("floats", "1 of 1 operators in fp16", True)
    quantized, in_float = (alternative.figures["sqnr_db"] for alternative in together.alternatives)
    assert in_float > quantized + 0.5
    assert together.alternatives[0].failure.startswith("worse than the model as given")
    assert (str(second.place), second.taken) == ("second", "fp16")
    assert second.reason.startswith("this alone gains the worst output")
    rows = {str(row.edge): row for row in result.plan if row.edge is not None}
    assert rows["first:0"].dtype.is_quantized
    assert rows["third:0"].dtype.is_quantized
    assert "second:0" not in rows or not rows["second:0"].dtype.is_quantized
    assert rows["second:1"].why is Reason.MEASURED


def test_where_nothing_is_lost_nothing_is_kept_in_float(tmp_path: Path) -> None:
    """ort-cpu has uint8."""
    result = repaired(tmp_path, "ort-cpu")
    assert result.verdicts["repaired"].status is Status.PASS
    assert result.decisions == ()


def test_without_data_nothing_is_tried(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")
    result = repaired(tmp_path, "tensorrt:sm89", None)
    assert (result.decisions, result.verdicts["repaired"].status) == ((), Status.NOT_CHECKED)


def bound(plan: Plan) -> set[str]:
    return {name for name, choice in plan.tensors.items() if isinstance(choice.storage, QParams)}


TENSORS = """g (float[1,8] x) => (float[1,8] y) <float[8] c = {1000, 0, 0, 0, 0, 0, 0, 0}>
{ [up] a = Add(x, c) [down] b = Sub(a, c) [soft] s = Sigmoid(b) [out] y = Mul(s, x) }"""


# One layer less: in 8 bit it is good enough in simulation.
SILU = "g (float[1,8] x) => (float[1,8] y) { [soft] s = Sigmoid(x) [out] y = Mul(s, x) }"


def search(
    folder: Path, limit_db: float, target: Target = ORT_CPU, pins: Pins | None = None, text: str = TENSORS
) -> tuple[Plan, tuple[Decision, ...]]:
    """The knob with a judge that wants this SQNR of ``y``, on a target that quantizes every tensor."""
    bench, variant = bench_of(graph(text), target, W8A8, folder)
    variant = pinned(pins or Pins())(variant)

    def judge(model: ir.Model, plan: Plan, run: RunSamples, samples: list[Sample], margin: Margin) -> Verdict:
        inputs = np.concatenate([sample["x"] for sample in samples])
        expected = inputs / (1 + np.exp(-inputs))
        try:
            now = sqnr_db(expected, np.concatenate([sample["y"] for sample in run(samples)]))
        except BackendError:
            return Verdict(Status.NOT_CHECKED, "", {})
        return Verdict(Status.PASS if now >= limit_db else Status.FAIL, "", {}, numbers={"repaired: y": now})

    chosen, decisions = float_units.float_units(judge).decide(bench, variant)
    return bench.plan(chosen), decisions


def coarse(counts: list[int], **settings: int) -> Target:
    """A target whose kernels have fewer bits than the simulation where ``s`` is quantized."""

    def run(compiled: CompileResult, samples: Iterable[Sample]) -> Iterator[Sample]:
        nodes = ir.load(next(a.path for a in compiled.artifacts if a.name == MODEL)).graph
        is_quantized = any(n.op_type == "QuantizeLinear" and str(n.inputs[0].name) == "s" for n in nodes)
        samples = list(samples)
        counts.append(len(samples))
        for outputs in ORT_CPU.backend.runner.run(compiled, samples):
            yield {name: np.rint(array * 4) / 4 if is_quantized else array for name, array in outputs.items()}

    return replace(ORT_CPU, backend=replace(ORT_CPU.backend, runner=Runner(run, **settings)))


def test_what_only_the_target_loses_is_kept_in_float_too(tmp_path: Path) -> None:
    plan, decisions = search(tmp_path / "simulated", 30, text=SILU)
    assert ("s" in bound(plan), decisions) == (True, ())
    counts: list[int] = []
    plan, (together, *each) = search(tmp_path / "target", 30, coarse(counts), text=SILU)
    assert "s" not in bound(plan)
    assert together.reason.startswith("on the target: ")
    as_planned, taken = together.alternatives[0], together.alternatives[-1]
    assert as_planned.figures["sqnr_db"] > 30 > as_planned.figures["target_sqnr_db"]
    assert min(taken.figures.values()) > 30
    assert together.taken == taken.label == f"{len(each)} of 2 operators in fp32"
    assert set(counts) == {2, 4}  # the samples of the verdict, and those to find wrong outputs


def test_what_is_enough_in_simulation_is_not_on_the_target(tmp_path: Path) -> None:
    simulated, (before, *_) = search(tmp_path / "simulated", 30)
    plan, (together, *each) = search(tmp_path / "target", 30, coarse([]))
    edge = Edge("out", 0)  # which reads s
    assert isinstance(simulated.edges.get(edge, simulated.tensors["s"]).storage, QParams)
    assert not isinstance(plan.edges.get(edge, plan.tensors["s"]).storage, QParams)
    assert before.taken in [row.label.replace("of 4", "of 3") for row in together.alternatives if row.failure]
    assert together.taken == f"{len(each)} of 4 operators in fp32"


def test_an_emulator_judges_as_many_samples_as_before_a_failure_counts(tmp_path: Path) -> None:
    counts: list[int] = []
    _, decisions = search(tmp_path, 5, coarse(counts, samples=1, retry_samples=3), text=SILU)
    assert (decisions, counts) == ((), [3])


def test_a_target_that_cannot_be_run_leaves_the_choice_of_the_simulation(tmp_path: Path) -> None:
    def run(compiled: CompileResult, samples: Iterable[Sample]) -> Iterator[Sample]:
        raise BackendError("no device")
        yield {}

    for runner in (Runner(run), Runner(None, why_not="no device")):
        target = replace(ORT_CPU, backend=replace(ORT_CPU.backend, runner=runner))
        plan, decisions = search(tmp_path, 30, target, text=SILU)
        assert ("s" in bound(plan), decisions) == (True, ())


def test_as_few_as_are_enough(tmp_path: Path) -> None:
    """A constant of 1000 that is added and subtracted again ruins its tensor in 8 bit, and nothing else does."""
    plan, (together, *each) = search(tmp_path, 30)
    assert {str(decision.place) for decision in each} <= {"up", "down"}
    assert "a" not in bound(plan)
    assert together.taken == f"{len(each)} of 3 operators in fp32"
    labels = [alternative.label for alternative in together.alternatives]
    assert labels[0] == "0 of 3 operators in fp32"
    assert labels[-1] == "3 of 3 operators in fp32"


def test_what_reads_or_writes_a_tensor_that_the_caller_keeps_is_left_alone(tmp_path: Path) -> None:
    pins = Pins(groups={"s": Pin(W8A8, Reason.PINNED, "--keep s=w8a8")})
    _, (together, *each) = search(tmp_path, 30, pins=pins)
    assert together.taken == f"{len(each)} of 2 operators in fp32"
    assert {str(decision.place) for decision in each} <= {"up", "down"}


def test_a_variant_that_cannot_be_run_is_not_taken(tmp_path: Path) -> None:
    bench, variant = bench_of(graph(TENSORS), ORT_CPU, W8A8, tmp_path)

    def judge(model: ir.Model, plan: Plan, run: RunSamples, samples: list[Sample], margin: Margin) -> Verdict:
        as_planned = "a" in bound(plan) and "s" in bound(plan)
        return Verdict(Status.FAIL if as_planned else Status.NOT_CHECKED, "", {})

    chosen, _ = float_units.float_units(judge).decide(bench, variant)
    assert chosen is variant


def test_a_set_that_a_search_takes_must_pass_more_clearly(tmp_path: Path) -> None:
    """It is the first that passes of several."""
    bench, variant = bench_of(graph(TENSORS), ORT_CPU, W8A8, tmp_path)
    seen: list[Margin] = []

    def judge(model: ir.Model, plan: Plan, run: RunSamples, samples: list[Sample], margin: Margin) -> Verdict:
        seen.append(margin)
        return Verdict(Status.FAIL if "a" in bound(plan) else Status.PASS, "", {})

    float_units.float_units(judge).decide(bench, variant)
    assert seen[0] == Margin(0.5, errors=2)
    assert set(seen[1:-1]) == {Margin(0.5, errors=3)}
    assert seen[-1] == Margin(0.5)  # on the target


def test_what_does_not_help_is_not_kept(tmp_path: Path) -> None:
    """Float first, then more bits."""
    plan, decisions = search(tmp_path, 500)
    assert [decision.taken for decision in decisions] == [f"0 of 4 operators in {p}" for p in ("fp32", "w8a16")]
    for decision, precision in zip(decisions, ("fp32", "w8a16"), strict=True):
        assert decision.reason.endswith(f"all 4 of them in {precision} do not help enough")
    assert "a" in bound(plan)


def test_what_the_compiler_rejects_is_not_kept_and_more_bits_are_tried(tmp_path: Path) -> None:
    """A compiler that takes no float: every tensor but the output must be quantized."""

    def compile_quantized(artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
        count = sum(node.op_type == "QuantizeLinear" for node in ir.load(artifacts[0].path).graph)
        error = "" if count >= 4 else "an operator is in float"
        return replace(ORT_CPU.backend.compile(artifacts, folder), error=error)

    backend = replace(ORT_CPU.backend, compile=compile_quantized)
    plan, (in_float, wider, *_) = search(tmp_path, 30, replace(ORT_CPU, backend=backend))
    assert in_float.taken == "0 of 3 operators in fp32"
    assert in_float.reason.endswith("of them in fp32 fail on the target: an operator is in float")
    assert wider.taken.endswith("of 3 operators in w8a16")
    assert plan.tensors["a"].storage.dtype is DType.U16


def test_neighbors_are_tried_together_where_there_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_units, "MOST_TRIALS", 2)
    _, (together, *each) = search(tmp_path, 30)
    assert together.taken == "2 of 3 operators in fp32"
    assert {str(decision.place) for decision in each} == {"up", "down"}
    assert all("together with 1 neighbors" in decision.reason for decision in each)


def test_the_shortest_prefix() -> None:
    for length in range(1, 9):
        for enough in range(1, length + 2):
            prefix = shortest_prefix(range(length), lambda start, enough=enough: len(start) >= enough)
            assert (None if prefix is None else len(prefix)) == (None if enough > length else enough)


def test_a_shorter_prefix_can_be_enough_where_all_is_not() -> None:
    """What is kept in float last can do harm."""
    for length in range(3, 40):
        prefix = shortest_prefix(range(length), lambda start, length=length: 2 <= len(start) < length)
        assert prefix == range(2)


def test_the_shortest_longer_prefix() -> None:
    for length in range(1, 9):
        for too_short in range(length + 1):
            for enough in range(too_short + 1, length + 2):
                tried: list[int] = []

                def is_enough(start: range, enough: int = enough, tried: list[int] = tried) -> bool:
                    tried.append(len(start))
                    return len(start) >= enough

                prefix = longer_prefix(range(length), is_enough, too_short)
                assert (None if prefix is None else len(prefix)) == (None if enough > length else enough)
                assert all(too_short < count < 2 * enough + 1 for count in tried)
