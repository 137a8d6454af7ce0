"""The verify stage: compare float, simulation and target on the same samples, and derive the verdicts."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import MODEL, Backend, CompileResult, Probe, ReadBack, Runner, Sample
from dovetail.calibrate.data import Data, describe
from dovetail.finding import Status, Thresholds, Verdict
from dovetail.model.class_scores import class_outputs
from dovetail.model.ranked import ranked_outputs
from dovetail.model.session import Mode
from dovetail.model.split import SplitModel
from dovetail.numerics.metrics import Comparison
from dovetail.qdq.quantized_io import RunSamples, with_float_io
from dovetail.qdq.simulation import load_simulation
from dovetail.stats import DataInfo
from dovetail.storage import Plan
from dovetail.verify import verdicts
from dovetail.verify.accuracy import Judgement, Measured, judge
from dovetail.verify.compare import Agreement, compare_runs, compare_tensors
from dovetail.verify.consumer_loss import consumer_losses
from dovetail.verify.metric import Accuracy, Metric, lower_is_better, measure, require_figures
from dovetail.verify.run import SessionRun, followed
from dovetail.verify.target_run import Progress, TargetRun, quiet, run_on_target

# How many samples the metrics per output and per tensor are measured on; a metric uses all of its data.
COMPARED_SAMPLES = 16
TENSOR_SAMPLES = 4


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The caller's held-out data and metric; ``key`` identifies them, and is empty if that is not possible."""

    data: Data
    metric: Metric | None
    metric_name: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class BuildInputs:
    """What is verified: the float graph, its plan, and what was emitted and compiled from them.

    With a ``tail``, the graph is the head of the original. Its own outputs are compared, because the shapes of the
    tail's outputs can depend on the data; a metric gets the outputs of the tail.
    """

    original: Path
    model: ir.Model
    plan: Plan
    compiled: CompileResult
    probe: Probe
    tail: ir.Model | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FailingSample:
    """A sample on which target and simulation disagree, and the SQNR half way between the two."""

    sample: Sample
    level_db: float


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparisons and the verdicts that follow from them.

    ``per_call``: how many samples one call of the model has. ``judgement``: that of the verdict ``accuracy``.
    ``losses``: per tensor what quantizing it alone costs, measured only if the accuracy is low.
    """

    verdicts: Mapping[str, Verdict]
    simulation_vs_float: Agreement
    target_vs_float: Agreement | None
    target_vs_simulation: Agreement | None
    tensors: Mapping[str, Comparison]
    data: DataInfo
    accuracy: Accuracy | None
    emulated: Accuracy | None
    read_back: ReadBack | None
    failing: FailingSample | None = None
    simulation_where_target_ran: Agreement | None = None
    per_call: int = 1
    judgement: Judgement | None = None
    losses: Mapping[str, Comparison] = field(default_factory=dict)


def check_normalized(original: Path, split: SplitModel, data: Data, thresholds: Thresholds) -> Verdict:
    """Compare the graph to be quantized, followed by its tail, with the caller's model on calibration samples."""
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        samples = list(itertools.islice(data.samples(), thresholds.normalized_samples))
        before = SessionRun(original, Mode.FLOAT, Path(folder))
        after = followed(SessionRun(split.head, Mode.FLOAT, Path(folder)), split.tail, Path(folder))
        agreement = compare_runs(before(samples), after(samples), ranked_outputs(split.head.graph))
    return verdicts.normalized(agreement, thresholds, data.source)


def verify(
    built: BuildInputs,
    backend: Backend,
    data: Data,
    evaluation: Evaluation | None,
    thresholds: Thresholds,
    progress: Progress = quiet,
) -> Verification:
    """Run and compare everything that can run on this machine; the verdicts say what could not."""
    compiled = verdicts.compiled(built.compiled, built.probe, thresholds)
    usable = compiled.status is Status.PASS
    why_not = "" if usable else f"nothing was compiled: {compiled.reason}"
    runner = backend.runner
    count = max(COMPARED_SAMPLES, runner.samples or 0)
    used = describe(_first(data if evaluation is None else evaluation.data, count), built.model)
    samples = list(used.samples())
    read_back = backend.read_back(built.compiled, built.plan) if usable else None
    with tempfile.TemporaryDirectory(prefix="dovetail-") as name:
        folder = Path(name)
        emitted = next(a.path for a in built.compiled.artifacts if a.name == MODEL)
        simulation = load_simulation(emitted)
        runs = _runs(built, simulation, runner if usable else None, folder)
        tensors = compare_tensors(built.model, simulation, built.plan, samples[:TENSOR_SAMPLES], folder)
        ranked, classes = ranked_outputs(built.model.graph), class_outputs(built.model.graph)
        per_call = max(1, used.info().samples // len(samples))
        exact, quantized = runs["float"](samples), runs["simulation"](samples)
        simulated = compare_runs(exact, quantized, ranked, classes, per_call)
        ran, numerics = None, verdicts.numerics({}, None, thresholds, why_not or runner.why_not)
        if "target" in runs:
            float_db = backend.float16_db if keeps_float(built.plan) else None
            ran, numerics = run_on_target(
                runs, ranked, samples, runner, float_db, thresholds, progress, classes, per_call
            )
        failing = _failing_sample(ran, numerics, samples, thresholds)
        numerics = verdicts.with_overflow(numerics, simulated)
        with_tail = {name: followed(run, built.tail, folder) for name, run in runs.items()}
        accuracy, emulated = _accuracies(evaluation, with_tail, built, samples, ran, runner, folder)
        for figures in filter(None, (accuracy, emulated)):
            require_figures(thresholds.max_drop_of, figures.figures["float"], "--max-drop")
        on_target = None if ran is None else ran.vs_float
        measured = Measured(simulated, on_target, used.info(), per_call, evaluation is not None, accuracy, emulated)
        judgement = judge(measured, thresholds)
        losses = {}
        if judgement.problems:
            losses = consumer_losses(built.model, built.plan, samples[:TENSOR_SAMPLES], folder)
    fidelity = verdicts.fidelity(read_back, thresholds, why_not)
    judged = {"compiled": compiled, "fidelity": fidelity, "numerics": numerics, "accuracy": judgement.verdict}
    return Verification(
        verdicts=judged,
        simulation_vs_float=simulated,
        target_vs_float=on_target,
        target_vs_simulation=None if ran is None else ran.vs_simulation,
        tensors=tensors,
        data=used.info(),
        accuracy=accuracy,
        emulated=emulated,
        read_back=read_back,
        failing=failing,
        simulation_where_target_ran=None if ran is None else ran.simulation,
        per_call=per_call,
        judgement=judgement,
        losses=losses,
    )


def _failing_sample(
    ran: TargetRun | None, numerics: Verdict, samples: Sequence[Sample], thresholds: Thresholds
) -> FailingSample | None:
    """The sample with the largest difference, if the target's outputs are not those of the simulation."""
    if ran is None or not ran.outputs or numerics.status is not Status.FAIL:
        return None
    return FailingSample(samples[ran.worst], ran.level_db(thresholds))


def _runs(built: BuildInputs, simulation: ir.Model, runner: Runner | None, folder: Path) -> dict[str, RunSamples]:
    """The models that are compared, with float inputs and outputs; the target only if it runs on this machine."""
    runs: dict[str, RunSamples] = {
        "float": SessionRun(built.original if built.tail is None else built.model, Mode.FLOAT, folder),
        "simulation": with_float_io(SessionRun(simulation, Mode.EXACT, folder), built.plan),
    }
    if runner is not None and runner.run is not None:
        runs["target"] = with_float_io(partial(runner.run, built.compiled), built.plan)
    return runs


def keeps_float(plan: Plan) -> bool:
    """Whether any stored tensor of the plan is float."""
    stored = [choice.storage for choice in plan.tensors.values() if choice.is_stored]
    return any(not storage.dtype.is_quantized for storage in stored)


def _accuracies(
    evaluation: Evaluation | None,
    runs: Mapping[str, RunSamples],
    built: BuildInputs,
    samples: list[Sample],
    ran: TargetRun | None,
    runner: Runner,
    folder: Path,
) -> tuple[Accuracy | None, Accuracy | None]:
    """Return the caller's metric on all held-out data, and for a slow target also on the samples that it ran."""
    if evaluation is None or evaluation.metric is None:
        return None, None
    outputs = [] if ran is None else ran.outputs
    slow = runner.samples is not None
    fast = {name: run for name, run in runs.items() if name != "target" or (outputs and not slow)}
    accuracy = _accuracy(evaluation, evaluation.data, fast, built)
    if not slow or len(outputs) < 2:  # one sample does not give an accuracy
        return accuracy, None
    ran_data = Data(evaluation.data.source, lambda: iter(samples[: len(outputs)]), len(outputs), evaluation.data.random)
    recorded = followed(lambda inputs: (output for _, output in zip(inputs, outputs, strict=True)), built.tail, folder)
    return accuracy, _accuracy(evaluation, ran_data, {**fast, "target": recorded}, built)


def _accuracy(
    evaluation: Evaluation, data: Data, runs: Mapping[str, RunSamples], built: BuildInputs
) -> Accuracy | None:
    if evaluation.metric is None:
        return None
    graphs = [model.graph for model in (built.model, built.tail) if model is not None]
    inputs = frozenset(v.name or "" for graph in graphs for v in graph.inputs)
    used = describe(data, built.model)
    figures = {}
    for name, run in runs.items():
        figures[name] = measure(evaluation.metric, evaluation.metric_name, run, used.samples(), inputs)
    lower = lower_is_better(evaluation.metric, evaluation.metric_name, figures["float"])
    return Accuracy(evaluation.metric_name, used.info(), figures, lower)


def _first(data: Data, count: int) -> Data:
    def samples() -> Iterator[Sample]:
        return itertools.islice(data.samples(), count)

    return Data(data.source, samples, count if data.count is None else min(count, data.count), data.random)
