"""``dovetail sensitivity``: which tensors, operators and blocks cost accuracy when they are quantized."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail.backend import Sample
from dovetail.calibrate.data import describe
from dovetail.clock import Clock, Reporter, silent
from dovetail.config import option_values
from dovetail.errors import InputError
from dovetail.files import file_sha256
from dovetail.float_stages import CalibratedGraph, calibrated_graph
from dovetail.job import Job
from dovetail.model.external_data import external_files
from dovetail.model.ranked import ranked_outputs
from dovetail.model.write import write_whole
from dovetail.plan.constraints import build_problem
from dovetail.plan.elements import elements_of
from dovetail.plan.make import make_plan
from dovetail.qdq.quantized_io import RunSamples
from dovetail.report.sensitivity import CSV, JSON, SensitivityResult, SensitivityRow
from dovetail.run_record import RunOrigin, RunRecord
from dovetail.rundir import RunDir, open_rundir
from dovetail.stages import Stages
from dovetail.trials.sensitivity.first_order import MEASURED, estimate
from dovetail.trials.sensitivity.measure import Cost, measure
from dovetail.trials.sensitivity.metric import measure_metric
from dovetail.trials.sensitivity.rank import ranks
from dovetail.trials.sensitivity.subjects import Level, Subject, subjects_of
from dovetail.verify.metric import lower_is_better
from dovetail.verify.metric import measure as metric_figures
from dovetail.verify.run import followed
from dovetail.verify.segmented import SegmentedSimulation
from dovetail.versions import core_versions

# How many samples are used by default: enough to tell parts apart that differ by a dB or two.
SAMPLES = 16
_FIRST_ORDER = (
    f"figures with ~ are estimated to first order; the {MEASURED} operators that cost most by it are measured"
)
_FROM_PYTHON = RunOrigin("sensitivity", "dovetail.sensitivity")


@dataclass(frozen=True, slots=True)
class SensitivityOptions:
    """``first_order``: estimate, and measure only what costs most. ``samples``: how many are used."""

    first_order: bool = False
    samples: int = SAMPLES

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InputError(f"--samples {self.samples}: expected a whole number above 0")


def sensitivity(
    job: Job,
    output: Path,
    options: SensitivityOptions = SensitivityOptions(),
    *,
    force: bool = False,
    report: Reporter = silent,
    origin: RunOrigin = _FROM_PYTHON,
) -> SensitivityResult:
    """Measure every part of a model alone, and write ``sensitivity.json`` and ``sensitivity.csv``."""
    if job.request.precision.name not in job.target.table.precisions or job.plan is not None:
        raise InputError("sensitivity needs one of the target's precisions, and no --plan")
    clock = Clock(report)
    with clock.stage("probe"):
        sha256 = file_sha256(job.path, *external_files(job.path))
    record = RunRecord(origin.kind, origin.command, job.path.name, option_values(job.options), job.compared(sha256))
    with open_rundir(output, record, force=force, resume=False) as run:
        graph = calibrated_graph(job, run, clock, Stages(run, clock, core_versions()), sha256)
        result = _measured(graph, run, clock, options)
        write_whole(run.path / CSV, result.to_csv())
        write_whole(run.path / JSON, result.to_json())
    return result


def _measured(graph: CalibratedGraph, run: RunDir, clock: Clock, options: SensitivityOptions) -> SensitivityResult:
    job, model = graph.job, graph.model.value
    plan = make_plan(model, job.target.table, graph.stats.value, graph.request)
    elements = elements_of(build_problem(model, job.target.table), plan)
    if not elements:
        raise InputError(f"{job.path.name}: {job.target.name} quantizes nothing of it in {plan.precision}")
    subjects = subjects_of(elements)
    used = describe(job.data if job.evaluation is None else job.evaluation.data, model)
    samples = list(itertools.islice(used.samples(), options.samples))
    info = used.info()
    with clock.stage("sensitivity"):
        simulation = SegmentedSimulation(model, plan, elements, run.stages)
        trial = _Trial(simulation, samples, subjects, ranked_outputs(model.graph), info.samples // len(samples), clock)
        costs, estimated = trial.first_order() if options.first_order else trial.exact()
        float_figures, figures = _metric(simulation, subjects, graph, run, clock)
    metric = None if job.evaluation is None else job.evaluation.metric
    return SensitivityResult(
        model=job.path.name,
        target=job.target.name,
        precision=plan.precision,
        data=info,
        rows=_rows(subjects, costs, estimated, figures),
        float_figures=float_figures,
        lower_is_better=() if metric is None else lower_is_better(metric, job.options.metric or "", float_figures),
        findings=graph.findings,
        notes=(_FIRST_ORDER,) if options.first_order else (),
        versions=core_versions(),
        options=option_values(job.options),
        timings_s={name: round(seconds, 4) for name, seconds in clock.timings_s.items()},
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """What is measured: subjects on samples; ``per_call``: how many samples one call of the model has."""

    simulation: SegmentedSimulation
    samples: Sequence[Sample]
    subjects: Sequence[Subject]
    ranked: Mapping[str, int]
    per_call: int
    clock: Clock

    def exact(self) -> tuple[list[Cost], frozenset[int]]:
        """The measured cost of every subject; none is only estimated."""
        return self._measure(self.subjects), frozenset()

    def first_order(self) -> tuple[list[Cost], frozenset[int]]:
        """The cost of every subject, and the numbers of the operators that are only estimated."""
        costs = estimate(self.simulation, self.samples, self.subjects, self.per_call, self.clock.progress)
        numbers = range(len(self.subjects))
        operators = [number for number in numbers if self.subjects[number].level is Level.OPERATOR]
        operators.sort(key=lambda number: costs[number].mean_db)
        estimated = frozenset(operators[MEASURED:])
        measured = [number for number in numbers if number not in estimated]
        for number, cost in zip(measured, self._measure([self.subjects[n] for n in measured]), strict=True):
            costs[number] = cost
        return costs, estimated

    def _measure(self, subjects: Sequence[Subject]) -> list[Cost]:
        return measure(self.simulation, self.samples, subjects, self.ranked, self.per_call, self.clock.progress)


def _metric(
    simulation: SegmentedSimulation, subjects: Sequence[Subject], graph: CalibratedGraph, run: RunDir, clock: Clock
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """The caller's metric in float and with each subject quantized; empty without a metric."""
    held_out, split = graph.job.evaluation, graph.split
    if held_out is None or held_out.metric is None:
        return {}, [{} for _ in subjects]
    graphs = [model.graph for model in (graph.model.value, split.tail) if model is not None]
    inputs = frozenset(value.name or "" for each in graphs for value in each.inputs)
    metric, name, data = held_out.metric, held_out.metric_name, held_out.data

    def figures(head: RunSamples) -> dict[str, float]:
        return metric_figures(metric, name, followed(head, split.tail, run.stages), data.samples(), inputs)

    return measure_metric(simulation, subjects, figures, clock.progress)


def _rows(
    subjects: Sequence[Subject],
    costs: Sequence[Cost],
    estimated: frozenset[int],
    figures: Sequence[Mapping[str, float]],
) -> tuple[SensitivityRow, ...]:
    """One row per subject; ranks count within a level."""
    whole_db = costs[0].mean_db
    places: dict[int, int] = {}
    for level in Level:
        numbers = [number for number, subject in enumerate(subjects) if subject.level is level]
        places |= dict(zip(numbers, ranks([costs[number] for number in numbers]), strict=True))
    return tuple(
        SensitivityRow(
            level=subject.level,
            part=subject.part,
            name=subject.name,
            op_type=subject.op_type,
            output=cost.output,
            sqnr_db=cost.mean_db,
            deviation_db=cost.deviation_db,
            share=10 ** ((whole_db - cost.mean_db) / 10),
            rank=places[number],
            estimated=number in estimated,
            figures=figures[number],
            keep=subject.tensors,
        )
        for number, (subject, cost) in enumerate(zip(subjects, costs, strict=True))
    )
