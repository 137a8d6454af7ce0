"""Fit one graph, and compare the outputs of the compiled model with float and simulation."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dovetail.backend import MODEL, CompileResult, Runner, Sample
from dovetail.clock import cpu_seconds
from dovetail.config import options_from
from dovetail.errors import BackendError, InputError, UnfinishedError
from dovetail.finding import Severity, Status
from dovetail.job import Job, prepare
from dovetail.model.session import Mode, open_session, run_session
from dovetail.pipeline import fit
from dovetail.report.result import Result
from dovetail.stage_files import load_compiled
from dovetail.sweep.judge import compare_outputs, wrong_output
from dovetail.sweep.outcome import Failure, FailureKind, Outcome, OutputQuality
from dovetail.trials.knob import decide_nothing

RunCompiled = Callable[[CompileResult, Iterable[Sample]], Iterator[Sample]]
_RUN_BY_SWEEP = "the sweep runs the compiled model and judges its outputs"
_BY_VERDICT = {
    ("normalized", Status.FAIL): FailureKind.NOT_EQUAL,
    ("compiled", Status.FAIL): FailureKind.REFUSED,
    ("compiled", Status.NOT_CHECKED): FailureKind.UNFINISHED,
    ("fidelity", Status.FAIL): FailureKind.CHANGED,
    ("fidelity", Status.NOT_CHECKED): FailureKind.NOT_FOUND,
    ("numerics", Status.FAIL): FailureKind.DISAGREES,
}


@dataclass(frozen=True, slots=True)
class FitRequest:
    """A model file, the ``.npz`` with its samples, and how it is fitted.

    ``build_only``: judge the first build, without the verdict ``numerics`` and what ``fit`` tries if it fails.
    ``cache``: whether results of the vendor's tools are kept and used again.
    """

    model: Path
    samples: Path
    target: str
    precision: str
    option: Mapping[str, str] = field(default_factory=dict)
    build_only: bool = False
    cache: bool = False


def fit_graph(request: FitRequest) -> Outcome:
    """Fit a graph and say what is wrong with the result; bad input and rejected graphs are failures, not errors."""
    before = cpu_seconds()
    with tempfile.TemporaryDirectory(prefix="dovetail-sweep-") as folder:
        try:
            outcome = fit_into(request, Path(folder) / "run")
        except UnfinishedError as error:
            outcome = Outcome((Failure(FailureKind.UNFINISHED, str(error)),))
        except (InputError, BackendError) as error:
            outcome = Outcome((Failure(FailureKind.REFUSED, str(error)),))
        except Exception as error:  # noqa: BLE001 - any other exception is a defect that the sweep looks for
            outcome = Outcome((Failure(FailureKind.UNEXPECTED, f"{type(error).__name__}: {error}"),))
    return replace(outcome, cpu_s=round(cpu_seconds() - before, 2))


def fit_into(request: FitRequest, run: Path) -> Outcome:
    """Fit a graph into a run directory, and say what is wrong with the result."""
    job = _job(request)
    runner = job.target.backend.runner
    result = fit(_without_runner(job) if request.build_only else job, run)
    outputs: dict[str, OutputQuality] = {}
    if result.verdicts["compiled"].status is Status.PASS and runner.run is not None:
        outputs = _outputs(request, run, runner.run)
    failures = _failures(result, wrong_output(outputs))
    verdicts = {name: str(verdict.status) for name, verdict in result.verdicts.items()}
    return Outcome(failures, verdicts, outputs, _workarounds(result, job))


def _job(request: FitRequest) -> Job:
    """The job, with one sample on a target that is emulated: a sweep looks for differences of many decibels."""
    values = {"target": request.target, "precision": request.precision, "option": dict(request.option)}
    options = options_from({**values, "baselines": "none", "cache": request.cache})
    with np.load(request.samples) as arrays:
        samples = {name: arrays[name] for name in arrays.files}
    job = prepare(request.model, options, calibration=samples)
    runner = job.target.backend.runner
    if runner.samples is None:
        return job
    return _with_runner(job, replace(runner, samples=1, retry_samples=None))


def _without_runner(job: Job) -> Job:
    return _with_runner(job, Runner(None, _RUN_BY_SWEEP))


def _with_runner(job: Job, runner: Runner) -> Job:
    return replace(job, target=replace(job.target, backend=replace(job.target.backend, runner=runner)))


def _outputs(request: FitRequest, run: Path, run_compiled: RunCompiled) -> dict[str, OutputQuality]:
    """Run the first sample through the float model, the simulation and the compiled model."""
    with np.load(request.samples) as arrays:
        sample: Sample = {name: arrays[name][0] for name in arrays.files}
    compiled = load_compiled(run)
    emitted = next(artifact.path for artifact in compiled.artifacts if artifact.name == MODEL)
    exact = run_session(open_session(request.model, Mode.FLOAT), sample)
    simulated = run_session(open_session(emitted, Mode.EXACT), sample)
    return compare_outputs(exact, simulated, next(iter(run_compiled(compiled, [sample]))))


def _failures(result: Result, wrong: Failure | None) -> tuple[Failure, ...]:
    """What the verdicts say, but ``accuracy``, which random weights decide, and what the outputs say."""
    codes = tuple(sorted({finding.code for finding in result.findings if finding.severity is not Severity.NOTE}))
    found = [
        Failure(kind, result.verdicts[name].reason, codes)
        for (name, status), kind in _BY_VERDICT.items()
        if result.verdicts[name].status is status
    ]
    is_quantized = any(row.scale is not None for row in result.plan)
    if result.verdicts["compiled"].status is not Status.PASS or not is_quantized:  # there is nothing to read back
        found = [failure for failure in found if failure.kind is not FailureKind.NOT_FOUND]
    if wrong is not None:
        numerics = result.verdicts["numerics"]  # if it fails, it also says which tensor is the first wrong one
        cause = f"{wrong.cause}; {numerics.reason}" if numerics.status is Status.FAIL else wrong.cause
        others = [failure for failure in found if failure.kind is not FailureKind.DISAGREES]
        found = [Failure(FailureKind.WRONG, cause, codes), *others]
    return tuple(sorted(found, key=lambda failure: list(FailureKind).index(failure.kind)))


def _workarounds(result: Result, job: Job) -> tuple[str, ...]:
    """The decisions of knobs that only have workarounds, where one helped."""
    knobs = {knob.name for knob in job.target.knobs if knob.decide is decide_nothing}
    tried = [decision for decision in result.decisions if decision.knob in knobs]
    return tuple(str(decision) for decision in tried if not any(a.failure for a in decision.alternatives))
