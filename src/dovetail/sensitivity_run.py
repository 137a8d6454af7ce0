"""The command ``dovetail sensitivity``: which tensors, operators and blocks cost accuracy when they are quantized."""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail.backend import MODEL, Sample
from dovetail.calibrate.data import describe
from dovetail.clock import Clock, Reporter, silent
from dovetail.config import option_values, require_nearest
from dovetail.errors import InputError
from dovetail.files import file_sha256
from dovetail.float_stages import CalibratedGraph, calibrated_graph
from dovetail.job import Job
from dovetail.model.edit import is_float
from dovetail.model.external_data import external_files
from dovetail.model.ranked import ranked_outputs
from dovetail.model.session import Mode
from dovetail.model.write import write_whole
from dovetail.plan.constraints import build_problem
from dovetail.plan.elements import elements_of
from dovetail.plan.make import make_plan
from dovetail.qdq.quantized_io import RunSamples, with_float_io
from dovetail.qdq.simulation import load_simulation
from dovetail.report.sensitivity import CSV, JSON, SQNR, SensitivityResult
from dovetail.report.sensitivity_rows import MetricFigures, finite, rows_of
from dovetail.run_record import SENSITIVITY_KIND, RunOrigin, RunRecord
from dovetail.rundir import RunDir, open_rundir
from dovetail.stages import Stages
from dovetail.stats import DataInfo
from dovetail.storage import Plan
from dovetail.trials.sensitivity.first_order import MEASURED, estimate
from dovetail.trials.sensitivity.measure import Calls, Cost, measure, measure_run
from dovetail.trials.sensitivity.metric import measure_metric
from dovetail.trials.sensitivity.subjects import Level, Subject, subjects_of
from dovetail.verify.metric import lower_is_better
from dovetail.verify.metric import measure as metric_figures
from dovetail.verify.run import SessionRun, followed
from dovetail.verify.segmented import SegmentedSimulation
from dovetail.versions import core_versions
from dovetail.whole_number import LARGEST

# On how many samples SQNR is measured by default: enough to tell parts apart that differ by a dB or two.
SAMPLES = 16
# By how much the emitted graph may differ from the sum of what is measured before a note says so.
_EMITTED_DB = 0.5
_FIRST_ORDER = (
    f"figures with ~ are estimated to first order; blocks, and the {MEASURED} operators that cost most by the "
    "estimate, are measured"
)
_FROM_PYTHON = RunOrigin(SENSITIVITY_KIND, "dovetail.sensitivity")


@dataclass(frozen=True, slots=True)
class SensitivityOptions:
    """``first_order``: estimate, and measure only what costs most.

    ``samples``: on how many samples SQNR and the metric are measured; None: SQNR on ``SAMPLES``, the metric on all
    held-out samples.
    """

    first_order: bool = False
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.samples is not None and not 1 <= self.samples <= LARGEST:
            raise InputError(f"--samples {self.samples}: expected a whole number from 1 to {LARGEST}")


def sensitivity(
    job: Job,
    output: Path,
    options: SensitivityOptions = SensitivityOptions(),
    *,
    force: bool = False,
    resume: bool = False,
    report: Reporter = silent,
    origin: RunOrigin = _FROM_PYTHON,
) -> SensitivityResult:
    """Measure every part of a model alone, and write ``sensitivity.json`` and ``sensitivity.csv``.

    ``resume``: take what an earlier run in the same directory has up to the calibration; everything is measured again.
    """
    require_nearest(job.options, "`dovetail sensitivity` measures weights that are rounded to nearest")
    _require_precision(job)
    clock = Clock(report)
    with clock.stage("probe"):
        sha256 = file_sha256(job.path, *external_files(job.path))
    record = RunRecord(origin.kind, origin.command, job.path.name, option_values(job.options), job.compared(sha256))
    with open_rundir(output, record, force=force, resume=resume) as run:
        graph = calibrated_graph(job, run, clock, Stages(run, clock, core_versions()), sha256)
        result = _measured(graph, run, clock, options)
        write_whole(run.path / CSV, result.to_csv())
        write_whole(run.path / JSON, result.to_json())
    return result


def _require_precision(job: Job) -> None:
    """Refuse a name that stands for several precisions, and precisions that quantize nothing."""
    table, name = job.target.table, job.options.precision
    quantized = [
        other.name
        for other in table.precisions.values()
        if other.activation.dtype.is_quantized or other.weight.dtype.is_quantized
    ]
    if name not in quantized:
        raise InputError(
            f"--precision {name}: sensitivity is measured for one precision that quantizes; expected one of "
            f"{', '.join(quantized)}"
        )


def _measured(graph: CalibratedGraph, run: RunDir, clock: Clock, options: SensitivityOptions) -> SensitivityResult:
    job, model = graph.job, graph.model.value
    metric = None if job.evaluation is None else job.evaluation.metric
    if metric is None and not any(map(is_float, model.graph.outputs)):
        raise InputError(f"{job.path.name}: no output is float, so SQNR says nothing; add --eval DATA and --metric")
    plan = make_plan(model, job.target.table, graph.stats.value, graph.request)
    elements = elements_of(build_problem(model, job.target.table), plan)
    if not elements:
        raise InputError(f"{job.path.name}: {job.target.name} quantizes nothing of it in {plan.precision}")
    subjects = subjects_of(elements)
    with clock.stage("estimate"):
        calls, info = _calls(graph, options)
        trial = _Trial(SegmentedSimulation(model, plan, elements, run.stages), calls, subjects, clock)
        costs, estimated = trial.first_order() if options.first_order else trial.exact()
    with clock.stage("verify"):
        notes = _notes(trial, graph, plan, run, costs[0], info, options)
    with clock.stage("metric"):
        figures = _metric(trial, graph, run, options)
    return SensitivityResult(
        model=job.path.name,
        target=job.target.name,
        precision=plan.precision,
        data=info,
        held_out=job.evaluation is not None,
        rows=rows_of(subjects, costs, estimated, figures),
        ranked_by=SQNR if figures is None else figures.ranked_by,
        float_figures={} if figures is None else {k: finite(v) for k, v in figures.in_float.items()},
        lower_is_better=() if figures is None else figures.lower_is_better,
        metric_samples=None if figures is None else figures.samples,
        findings=graph.findings,
        notes=notes,
        versions=core_versions(),
        options={**option_values(job.options), "samples": options.samples, "first_order": options.first_order},
        timings_s={name: round(seconds, 4) for name, seconds in clock.timings_s.items()},
    )


def _calls(graph: CalibratedGraph, options: SensitivityOptions) -> tuple[Calls, DataInfo]:
    """The samples that SQNR is measured on: the held-out ones if there are any, else those of calibration."""
    job, model = graph.job, graph.model.value
    used = describe(job.data if job.evaluation is None else job.evaluation.data, model)
    next(iter(used.samples()))
    per_call = len(used.digests)
    limit = math.ceil((options.samples or SAMPLES) / per_call)
    count = sum(1 for _ in itertools.islice(used.samples(), limit))

    def read() -> Iterator[Sample]:
        return itertools.islice(used.data.samples(), limit)

    return Calls(read, count, per_call, ranked_outputs(model.graph)), used.info()


@dataclass(frozen=True, slots=True)
class _Trial:
    """What is measured: subjects on samples."""

    simulation: SegmentedSimulation
    calls: Calls
    subjects: Sequence[Subject]
    clock: Clock

    def exact(self) -> tuple[list[Cost], frozenset[int]]:
        """The measured cost of every subject; none is only estimated."""
        return self._measure(self.subjects), frozenset()

    def first_order(self) -> tuple[list[Cost], frozenset[int]]:
        """The cost of every subject, and the numbers of the operators that are only estimated."""
        costs = estimate(self.simulation, self.calls, self.subjects, self.clock.progress)
        numbers = range(len(self.subjects))
        operators = [number for number in numbers if self.subjects[number].level is Level.OPERATOR]
        whole = sorted((n for n in operators if self.subjects[n].whole), key=lambda n: costs[n].mean_db)
        estimated = frozenset(operators) - frozenset(whole[:MEASURED])
        measured = [number for number in numbers if number not in estimated]
        for number, cost in zip(measured, self._measure([self.subjects[n] for n in measured]), strict=True):
            costs[number] = cost
        return costs, estimated

    def _measure(self, subjects: Sequence[Subject]) -> list[Cost]:
        with self.clock.stage("sensitivity"):
            return measure(self.simulation, self.calls, subjects, self.clock.progress)


def _notes(
    trial: _Trial,
    graph: CalibratedGraph,
    plan: Plan,
    run: RunDir,
    whole: Cost,
    info: DataInfo,
    options: SensitivityOptions,
) -> tuple[str, ...]:
    """What the reader must know about the figures."""
    notes = [_FIRST_ORDER] if options.first_order else []
    if options.samples is not None and info.samples < options.samples:
        notes.append(f"{info.source} has only {info.samples} samples, --samples asks for {options.samples}")
    if graph.split.tail is not None:
        outputs = ", ".join(value.name or "" for value in graph.model.value.graph.outputs)
        notes.append(f"the target cannot run the end of the model: SQNR is of the tensors before it, {outputs}")
    emitted = measure_run(trial.simulation, trial.calls, _emitted(graph, plan, run))
    if abs(emitted.mean_db - whole.mean_db) > _EMITTED_DB:
        notes.append(
            f"the graph that is emitted for the target has {emitted.mean_db:.1f} dB, not {whole.mean_db:.1f} dB: it "
            "also has losses that belong to no scale of the plan, such as float16 or quantization at run time, which "
            "the rows do not contain"
        )
    return tuple(notes)


def _emitted(graph: CalibratedGraph, plan: Plan, run: RunDir) -> RunSamples:
    """The simulation of the graph that the target's compiler would get."""
    folder = Path(tempfile.mkdtemp(prefix="emit-", dir=run.stages))
    try:
        artifacts = graph.job.target.backend.emit(graph.model.value, plan, folder)
        path = next(artifact.path for artifact in artifacts if artifact.name == MODEL)
        return with_float_io(SessionRun(load_simulation(path), Mode.EXACT, folder), plan)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _metric(trial: _Trial, graph: CalibratedGraph, run: RunDir, options: SensitivityOptions) -> MetricFigures | None:
    """The caller's metric in float and with each subject quantized."""
    held_out, split = graph.job.evaluation, graph.split
    if held_out is None or held_out.metric is None:
        return None
    metric, name, data = held_out.metric, held_out.metric_name, held_out.data
    limit = None if options.samples is None else math.ceil(options.samples / trial.calls.per_call)
    calls = sum(1 for _ in itertools.islice(data.samples(), limit))
    graphs = [model.graph for model in (graph.model.value, split.tail) if model is not None]
    inputs = frozenset(value.name or "" for each in graphs for value in each.inputs)
    heads: list[RunSamples] = []  # the last one is run; the session of the tail is opened once for all of them
    run_model = followed(lambda samples: heads[-1](samples), split.tail, run.stages)

    def figures(head: RunSamples) -> dict[str, float]:
        heads[:] = [head]
        return metric_figures(metric, name, run_model, itertools.islice(data.samples(), limit), inputs)

    in_float, quantized = measure_metric(trial.simulation, trial.subjects, figures, calls, trial.clock.progress)
    lower = lower_is_better(metric, name, in_float)
    return MetricFigures(in_float, quantized, lower, calls * trial.calls.per_call)
