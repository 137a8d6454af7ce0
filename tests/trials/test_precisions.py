"""Which of several precisions is chosen: the rule, and a target that compiles, runs and times them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from dovetail.backend import Artifact, CompileResult, MeasuredLatency, Sample, Timer
from dovetail.errors import BackendError
from dovetail.op_support import FP32, W8A8, Precision
from dovetail.target import Target
from dovetail.trials.decision import Alternative, Decision
from dovetail.trials.knobs.precisions import pick, precisions
from dovetail.trials.workbench import Score
from tests.changed import changed
from tests.planning import graph
from tests.toy_target import TOY, compile_model, run
from tests.trials.benches import bench_of, samples_of


@pytest.mark.parametrize(
    ("a", "b", "expected", "why"),
    [
        ((40.0, 0.97), (45.0, 1.0), "b", "no other takes less than 0.95 of its time"),
        ((40.0, 0.60), (45.0, 1.0), "a", "it takes 0.60 of the time, and its worst output has 40.0 dB"),
        ((24.0, 0.60), (45.0, 1.0), "b", "the faster one has less than 25 dB"),
        ((24.0, None), (20.0, None), "a", "latency was not measured"),
        ((None, None), (20.0, None), "b", "no other precision runs on the target"),
        ((None, None), (None, None), "a", "none was run on the target"),
    ],
)
def test_the_rule(
    a: tuple[float | None, float | None], b: tuple[float | None, float | None], expected: str, why: str
) -> None:
    """``a`` and ``b``: target SQNR and time ratio."""
    rows = []
    for name, simulation_db, (target_db, ratio) in (("a", 50.0, a), ("b", 40.0, b)):
        figures = {"simulation_sqnr_db": simulation_db, "target_sqnr_db": target_db, "time_ratio": ratio}
        rows.append(Alternative(name, {key: value for key, value in figures.items() if value is not None}))
    chosen, reason = pick(rows)
    assert chosen.label == expected
    assert why in reason


MODEL = """g (float[1,4,4] x) => (float[1,4,4] y)
    <float[4,4] w = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,9}> { h = MatMul(x, w) y = Relu(h) }"""


def is_integer(compiled: CompileResult) -> bool:
    nodes = onnx.load(compiled.artifacts[0].path).graph.node
    return any(node.op_type == "DequantizeLinear" for node in nodes)


def toy(*, fails: Precision | None = None, nan: Precision | None = None) -> Target:
    """A target with two precisions of which w8a8 takes a third of the time; one may fail to run, or give NaN."""

    def timed(programs: Mapping[str, CompileResult], baseline: str, sample: Sample) -> MeasuredLatency:
        assert set(sample) == {"x"}
        latency_us = {name: 10.0 if name == "w8a8" else 30.0 for name in programs}
        ratios = {name: us / latency_us[baseline] for name, us in latency_us.items()}
        return MeasuredLatency(baseline, latency_us, ratios, 5)

    def ran(compiled: CompileResult, samples: Iterable[Sample]) -> Iterator[Sample]:
        precision = W8A8 if is_integer(compiled) else FP32
        if precision is fails:
            raise BackendError("no such kernel")
        factor = np.float32(np.nan if precision is nan else 1)
        return ({name: output * factor for name, output in outputs.items()} for outputs in run(compiled, samples))

    return changed(
        TOY,
        precisions={"fp32": FP32, "w8a8": W8A8},
        choices={"auto": ("fp32", "w8a8")},
        timer=Timer(timed, ()),
        run=ran,
        knobs=(precisions(),),
    )


def decided(target: Target, folder: Path) -> tuple[Precision, Decision]:
    model = graph(MODEL)
    score = Score(lambda: samples_of(model), lambda outputs: {"n": float(len(list(outputs)))}, lambda names: ())
    bench, variant = bench_of(model, target, FP32, folder, knob_options={"precision": "auto"}, score=score)
    variant, (decision,) = target.knobs[0].decide(bench, variant)
    return variant.request.precision, decision


def test_candidates_are_compiled_run_timed_and_scored(tmp_path: Path) -> None:
    chosen, decision = decided(toy(), tmp_path)
    rows = {row.label: row.figures for row in decision.alternatives}
    assert chosen == W8A8
    assert list(rows) == ["fp32", "w8a8"]
    assert rows["w8a8"]["target_sqnr_db"] == pytest.approx(rows["w8a8"]["simulation_sqnr_db"])
    assert rows["w8a8"]["time_ratio"] == pytest.approx(1 / 3)
    assert [row["n"] for row in rows.values()] == [4.0, 4.0]
    assert decision.reason.startswith("it takes 0.33 of the time")
    assert "other's time" in decision.rule
    assert decision.samples == 4


def test_a_precision_that_does_not_run_is_not_chosen_and_its_failure_is_recorded(tmp_path: Path) -> None:
    chosen, decision = decided(toy(fails=W8A8), tmp_path)
    assert chosen == FP32
    assert decision.alternatives[1].failure == "no such kernel"
    assert "time_ratio" not in decision.alternatives[1].figures
    assert "no other precision runs on the target" in decision.reason


@pytest.mark.parametrize(("nan", "expected"), [(FP32, W8A8), (W8A8, FP32)])
def test_a_precision_that_gives_nan_is_not_chosen(nan: Precision, expected: Precision, tmp_path: Path) -> None:
    chosen, decision = decided(toy(nan=nan), tmp_path)
    assert chosen == expected
    assert {row.label: row.figures["target_sqnr_db"] for row in decision.alternatives}[nan.name] == -200.0


def test_a_candidate_that_does_not_compile_is_recorded_as_a_failure(tmp_path: Path) -> None:
    def hangs(artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
        compiled = compile_model(artifacts, folder)
        return CompileResult(artifacts, error="time limit", finished=False) if not is_integer(compiled) else compiled

    chosen, decision = decided(changed(toy(), compile=hangs), tmp_path)
    assert chosen == W8A8
    assert [row.failure for row in decision.alternatives] == ["time limit", ""]


def test_identical_files_are_compiled_once(tmp_path: Path) -> None:
    folders: list[Path] = []

    def counted(artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
        folders.append(folder)
        return compile_model(artifacts, folder)

    same = Precision("same", W8A8.activation, W8A8.weight)
    target = changed(
        toy(), compile=counted, precisions={"w8a8": W8A8, "same": same}, choices={"auto": ("w8a8", "same")}
    )
    model = graph(MODEL)
    bench, variant = bench_of(model, target, W8A8, tmp_path, knob_options={"precision": "auto"})
    variant, _ = target.knobs[0].decide(bench, variant)
    build = bench.build(variant)
    assert len(folders) == 1
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    shipped = bench.ship(build, run_folder)
    assert [artifact.path for artifact in shipped.compiled.artifacts] == [run_folder / "toy.onnx"]
    assert (run_folder / "toy.onnx").exists()
    assert len(folders) == 1
