"""The verify stage: float against simulation against target, on the same samples, and the verdicts that follow."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from dovetail.calibrate.data import Data, describe
from dovetail.errors import BackendError
from dovetail.finding import Status, Thresholds, Verdict
from dovetail.model.ranked import ranked_outputs
from dovetail.model.session import Mode
from dovetail.numerics.metrics import Comparison
from dovetail.plan.constraints import build_problem
from dovetail.qdq.boundary import Stream, real_stream
from dovetail.qdq.simulation import load_simulation
from dovetail.stats import DataInfo
from dovetail.storage import Plan
from dovetail.target import MODEL, Compiled, Probe, ReadBack, Sample, Target
from dovetail.verify import verdicts
from dovetail.verify.compare import Agreement, compare_runs, compare_tensors
from dovetail.verify.metric import Accuracy, Metric, measure
from dovetail.verify.run import SessionRun

# How many samples the figures per output and per tensor are taken on; a metric uses all of its data.
COMPARED_SAMPLES = 16
TENSOR_SAMPLES = 4


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The caller's held-out data and metric."""

    data: Data
    metric: Metric | None
    metric_name: str


@dataclass(frozen=True, slots=True)
class Built:
    """What there is to verify: the float graph, its plan, and what was emitted and compiled from them."""

    original: Path
    model: ir.Model
    plan: Plan
    compiled: Compiled
    probe: Probe


@dataclass(frozen=True, slots=True)
class Verification:
    """What was measured and what follows from it."""

    verdicts: Mapping[str, Verdict]
    simulation_vs_float: Agreement
    target_vs_float: Agreement | None
    target_vs_simulation: Agreement | None
    tensors: Mapping[str, Comparison]
    data: DataInfo
    accuracy: Accuracy | None
    read_back: ReadBack | None


def check_normalized(original: Path, model: ir.Model, data: Data, thresholds: Thresholds) -> Verdict:
    """Compare the graph that will be quantized with the caller's file, on real inputs."""
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        samples = list(itertools.islice(data.samples(), thresholds.normalized_samples))
        before = SessionRun(original, Mode.FLOAT, Path(folder))
        after = SessionRun(model, Mode.FLOAT, Path(folder))
        agreement = compare_runs(before(samples), after(samples), ranked_outputs(model.graph))
    return verdicts.normalized(agreement, thresholds, data.source)


def verify(
    built: Built, target: Target, data: Data, evaluation: Evaluation | None, thresholds: Thresholds
) -> Verification:
    """Run everything that can be run here, and say what could not."""
    compiled = verdicts.compiled(built.compiled, built.probe, thresholds)
    usable = compiled.status is Status.PASS
    why_not = "" if usable else f"nothing was compiled: {compiled.reason}"
    count = max(COMPARED_SAMPLES, target.sample_limit or 0)
    used = describe(_first(data if evaluation is None else evaluation.data, count), built.model)
    samples = list(used.samples())
    read_back = target.read_back(built.compiled, built.plan) if usable else None
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        simulation = load_simulation(next(a.path for a in built.compiled.artifacts if a.name == MODEL))
        streams: dict[str, Stream] = {
            "float": SessionRun(built.original, Mode.FLOAT, Path(folder)),
            "simulation": real_stream(SessionRun(simulation, Mode.EXACT, Path(folder)), built.plan),
        }
        if usable:
            streams["target"] = real_stream(lambda some: target.run(built.compiled, some), built.plan)
        on_target = samples[: target.sample_limit]
        tensors = compare_tensors(built.model, simulation, built.plan, samples[:TENSOR_SAMPLES], Path(folder))
        pairs = _Pairs(streams, ranked_outputs(built.model.graph))
        simulated = pairs.compare("float", "simulation", samples)
        ran, apart, failure = pairs.on_target(on_target) if usable else (None, None, "")
        same = pairs.compare("float", "simulation", on_target).sqnr_db() if usable else {}
        if target.float_db is not None and _keeps_float(built, target):
            same = {name: min(value, target.float_db) for name, value in same.items()}
        with_target = target.sample_limit is None and ran is not None
        measured = streams if with_target else {k: v for k, v in streams.items() if k != "target"}
        accuracy = _accuracy(evaluation, measured, built.model)
    found = {
        "compiled": compiled,
        "fidelity": verdicts.fidelity(read_back, thresholds, why_not),
        "numerics": verdicts.cannot_run(failure, thresholds)
        if failure
        else verdicts.numerics(same, None if ran is None else ran.sqnr_db(), thresholds, why_not),
    }
    return Verification(found, simulated, ran, apart, tensors, used.info(), accuracy, read_back)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The ways of running the model, two at a time."""

    streams: Mapping[str, Stream]
    ranked: Mapping[str, int]

    def compare(self, one: str, other: str, samples: list[Sample]) -> Agreement:
        return compare_runs(self.streams[one](samples), self.streams[other](samples), self.ranked)

    def on_target(self, samples: list[Sample]) -> tuple[Agreement | None, Agreement | None, str]:
        """Target against float, target against simulation, and what the target said if it cannot run its own graph."""
        try:
            return self.compare("float", "target", samples), self.compare("simulation", "target", samples), ""
        except BackendError as error:
            return None, None, str(error)


def _keeps_float(built: Built, target: Target) -> bool:
    """Whether a tensor that is stored at all is stored in float."""
    inside = build_problem(built.model, target).interior
    stored = [choice.storage for name, choice in built.plan.tensors.items() if name not in inside]
    return any(not storage.dtype.is_quantized for storage in stored)


def _accuracy(evaluation: Evaluation | None, streams: Mapping[str, Stream], model: ir.Model) -> Accuracy | None:
    if evaluation is None or evaluation.metric is None:
        return None
    inputs = frozenset(v.name or "" for v in model.graph.inputs)
    used = describe(evaluation.data, model)
    figures = {}
    for name, stream in streams.items():
        figures[name] = measure(evaluation.metric, evaluation.metric_name, stream, used.samples(), inputs)
    return Accuracy(evaluation.metric_name, used.info(), figures)


def _first(data: Data, count: int) -> Data:
    def samples() -> Iterator[Sample]:
        return itertools.islice(data.samples(), count)

    return Data(data.source, samples, count if data.count is None else min(count, data.count), data.random)
