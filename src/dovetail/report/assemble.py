"""From what the stages left to the result: the only place that knows both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

import dovetail
from dovetail.backend import Artifact, CompileResult, MeasuredLatency
from dovetail.files import file_sha256
from dovetail.finding import Finding, Status, Verdict, passes_when
from dovetail.job import Job
from dovetail.model.origin import origin_of
from dovetail.model.split import SplitModel
from dovetail.model.write import DATA
from dovetail.numerics.metrics import Comparison
from dovetail.pass_record import PassRecord
from dovetail.plan.rows import plan_rows
from dovetail.report.result import ArtifactInfo, Comparisons, Metrics, Result, TensorQuality
from dovetail.stats import Stats
from dovetail.storage import Plan
from dovetail.trials.baselines import BaselineComparison
from dovetail.trials.decision import Decision
from dovetail.verify.compare import Agreement
from dovetail.verify.verdicts import bounded_db
from dovetail.verify.verify import Verification

# What the target cannot run, in the run directory.
TAIL = "tail.onnx"
_VERDICTS = ("normalized", "compiled", "fidelity", "numerics")
_DEVICE = "device"
# Field of ``Metrics`` -> the figure in it.
_FIGURES: Mapping[str, Callable[[Comparison], float]] = {
    "sqnr_db": lambda one: bounded_db(one.sqnr_db),
    "cosine": lambda one: one.cosine,
    "max_abs_error": lambda one: one.max_abs_error,
}
_TOP1 = "top1_agreement"


@dataclass(frozen=True, slots=True)
class FitRecord:
    """What the stages after normalization left; absent as a whole when the run was refused before them."""

    stats: Stats
    plan: Plan
    compiled: CompileResult
    verification: Verification
    findings: tuple[Finding, ...]
    decisions: tuple[Decision, ...]
    beside: BaselineComparison
    device: Verdict | None = None


def assemble(
    job: Job,
    run: Path,
    split: SplitModel,
    model_sha256: str,
    normalized: Verdict,
    passes: tuple[PassRecord, ...],
    record: FitRecord | None,
    versions: Mapping[str, str],
) -> Result:
    """Put a result together, but for the timings; a verdict that no stage reached is not checked."""
    model = split.head
    found = {"normalized": normalized, **(record.verification.verdicts if record else {})}
    if record is not None and record.device is not None:
        found[_DEVICE] = record.device
    asked = _VERDICTS if job.target.backend.device is None else (*_VERDICTS, _DEVICE)
    missing = "the run was refused: the graph to be quantized does not equal the original"
    if job.refused:
        found["compiled"] = Verdict(Status.FAIL, job.refused, passes_when("compiled", job.options.thresholds))
        missing = f"nothing was compiled: {job.refused}"
    verdicts = {
        name: found.get(name) or Verdict(Status.NOT_CHECKED, missing, passes_when(name, job.options.thresholds))
        for name in asked
    }
    return Result(
        target=job.options.target,
        option=job.options.option,
        precision=job.options.precision,
        model=job.path.name,
        model_sha256=model_sha256,
        calibration=record.stats.data if record else None,
        verdicts=verdicts,
        thresholds=job.options.thresholds,
        metrics=_metrics(record, model, job.path, run) if record else Metrics(),
        plan=tuple(plan_rows(record.plan, model)) if record else (),
        read_back=record.verification.read_back.tensors if record and record.verification.read_back else (),
        findings=(*record.findings, *record.compiled.findings) if record else (),
        passes=tuple(each for each in passes if each.changed or each.declined),
        artifacts=_artifacts(record.compiled, run) if record else (),
        decisions=record.decisions if record else (),
        tail=split.cut,
        versions=versions,
        timings_s={},
        run=run.name,
        notes=(*_notes(job, record), *(record.compiled.notes if record else ())),
    )


def _notes(job: Job, record: FitRecord | None) -> tuple[str, ...]:
    notes = list(job.target.backend.runner.notes)
    if job.data.random:
        notes.append("calibrated on random data: no figure here says anything about accuracy")
    if job.options.baselines == "all" and not job.target.backend.baselines:
        notes.append(f"--baselines all: {job.target.name} gives no estimate, so there is nothing to compare")
    if job.options.emulate is not None and record is not None:
        ran = record.verification.target_vs_float
        if ran is not None and ran.samples < job.options.emulate:
            notes.append(f"{ran.samples} samples were emulated, not {job.options.emulate}: there are no more")
    if job.evaluation is None:
        notes.append("no held-out data was given: figures per output were taken on calibration samples")
    return tuple(notes)


def _artifacts(compiled: CompileResult, run: Path) -> tuple[ArtifactInfo, ...]:
    ours = f"dovetail {dovetail.__version__}"
    return tuple(
        ArtifactInfo(
            a.name,
            a.path.relative_to(run).as_posix(),
            file_sha256(a.path),
            a.path.stat().st_size,
            a.made_by or ours,
            a.shipped,
        )
        for a in _made(compiled, run)
    )


def _made(compiled: CompileResult, run: Path) -> tuple[Artifact, ...]:
    """The files of a run, with what the target cannot run, which goes beside what it can."""
    tail = [("tail" if path.name == TAIL else "tail_data", path) for path in sorted(run.glob(f"{TAIL}*"))]
    return (*compiled.artifacts, *(Artifact(name, path, shipped=True) for name, path in tail))


def _metrics(record: FitRecord, model: ir.Model, original: Path, run: Path) -> Metrics:
    verification, measured = record.verification, record.beside.measured
    estimated = record.beside.estimated
    compared = _comparisons(verification)
    origins = {
        v.name or "": origin_of(v).name for v in (*model.graph.inputs, *(o for n in model.graph for o in n.outputs))
    }
    return Metrics(
        sqnr_db=compared["sqnr_db"],
        cosine=compared["cosine"],
        max_abs_error=compared["max_abs_error"],
        top1_agreement=compared["top1_agreement"],
        data=verification.data,
        target_samples=None if verification.target_vs_float is None else verification.target_vs_float.samples,
        accuracy=verification.accuracy,
        accuracy_emulated=verification.emulated,
        tensors=tuple(_quality(name, origins[name], one) for name, one in verification.tensors.items()),
        size_bytes={"float": _size(original), **_shipped_bytes(record.compiled, run)},
        latency_estimate_us={name: one.estimate for name, one in estimated.items() if one.estimate is not None},
        traffic_bytes={name: one.traffic for name, one in estimated.items() if one.traffic is not None},
        not_estimated={name: why for name, one in estimated.items() if (why := one.error or one.not_estimated)},
        placement=record.compiled.placement,
        latency_measured=measured if isinstance(measured, MeasuredLatency) else None,
        not_measured=measured if isinstance(measured, str) else "",
    )


def _shipped_bytes(compiled: CompileResult, run: Path) -> dict[str, int]:
    """The size of every file that ships, by its name; weights beside a file count as part of it."""
    sizes: dict[str, int] = {}
    for artifact in _made(compiled, run):
        if artifact.shipped and not compiled.error:
            name = artifact.path.name.removesuffix(DATA)
            sizes[name] = sizes.get(name, 0) + artifact.path.stat().st_size
    return sizes


def _size(original: Path) -> int:
    """A model's size with the weights beside it."""
    model = ir.load(original)
    outside = {t.path: Path(t.path).stat().st_size for t in _external(model)}
    return original.stat().st_size + sum(outside.values())


def _external(model: ir.Model) -> list[ir.ExternalTensor]:
    tensors = [v.const_value for v in model.graph.initializers.values()]
    return [t for t in tensors if isinstance(t, ir.ExternalTensor)]


def columns(agreement: Agreement | None) -> dict[str, dict[str, float | None] | None]:
    """Field of ``Metrics`` -> its figure per output; None where nothing was compared."""
    if agreement is None:
        return dict.fromkeys((*_FIGURES, _TOP1))
    found = {
        field: {name: _number(figure(one)) for name, one in agreement.outputs.items()}
        for field, figure in _FIGURES.items()
    }
    return {**found, _TOP1: dict(agreement.top1)}


def _comparisons(verification: Verification) -> dict[str, Comparisons]:
    """Field of ``Metrics`` -> what was compared here; a device comes later."""
    simulated, ran = columns(verification.simulation_vs_float), columns(verification.target_vs_float)
    apart = columns(verification.target_vs_simulation)
    return {name: Comparisons(simulated[name] or {}, ran[name], apart[name]) for name in simulated}


def _quality(name: str, original_name: str, one: Comparison) -> TensorQuality:
    return TensorQuality(name, original_name, _number(bounded_db(one.sqnr_db)), _number(one.cosine), one.max_abs_error)


def _number(value: float) -> float | None:
    """What JSON can hold: NaN is nothing."""
    return None if math.isnan(value) else value
