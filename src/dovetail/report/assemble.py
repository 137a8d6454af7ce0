"""From what the stages left to the result: the only place that knows both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from dovetail.finding import Finding, Status, Verdict
from dovetail.job import Job
from dovetail.model.origin import origin_of
from dovetail.numerics.metrics import Comparison
from dovetail.pass_record import PassRecord
from dovetail.plan.rows import plan_rows
from dovetail.report.result import ArtifactInfo, Comparisons, Metrics, Result, TensorQuality
from dovetail.rundir import file_sha256
from dovetail.stats import Stats
from dovetail.storage import Plan
from dovetail.target import Compiled, Estimate
from dovetail.verify.compare import Agreement
from dovetail.verify.verdicts import bounded_db, words
from dovetail.verify.verify import Verification

_VERDICTS = ("normalized", "compiled", "fidelity", "numerics")


@dataclass(frozen=True, slots=True)
class Told:
    """What the stages after normalization left; absent as a whole when the run was refused before them."""

    stats: Stats
    plan: Plan
    compiled: Compiled
    verification: Verification
    findings: tuple[Finding, ...]
    estimates: Mapping[str, Estimate]


def assemble(
    job: Job,
    run: Path,
    model: ir.Model,
    *,
    model_sha256: str,
    normalized: Verdict,
    passes: tuple[PassRecord, ...],
    told: Told | None,
    versions: Mapping[str, str],
    timings_s: Mapping[str, float],
) -> Result:
    """Put a result together; a verdict that no stage reached is not checked."""
    found = {"normalized": normalized, **(told.verification.verdicts if told else {})}
    missing = "the run was refused: the graph to be quantized does not equal the original"
    verdicts = {
        name: found.get(name) or Verdict(Status.NOT_CHECKED, missing, words(name, job.options.thresholds))
        for name in _VERDICTS
    }
    return Result(
        target=job.options.target,
        precision=job.options.precision,
        model=job.path.name,
        model_sha256=model_sha256,
        calibration=told.stats.data if told else None,
        verdicts=verdicts,
        thresholds=job.options.thresholds,
        metrics=_metrics(told, model, job.path) if told else Metrics(),
        plan=tuple(plan_rows(told.plan, model)) if told else (),
        read_back=told.verification.read_back.tensors if told and told.verification.read_back else (),
        findings=(*told.findings, *told.compiled.findings) if told else (),
        passes=tuple(record for record in passes if record.changed or record.declined),
        artifacts=_artifacts(told.compiled, run) if told else (),
        versions=versions,
        timings_s={name: round(seconds, 4) for name, seconds in timings_s.items()},
        run=run.name,
        notes=_notes(job),
    )


def _notes(job: Job) -> tuple[str, ...]:
    notes = list(job.target.notes)
    if job.data.random:
        notes.append("calibrated on random data: no figure here says anything about accuracy")
    if job.evaluation is None:
        notes.append("no held-out data was given: figures per output were taken on calibration samples")
    return tuple(notes)


def _artifacts(compiled: Compiled, run: Path) -> tuple[ArtifactInfo, ...]:
    return tuple(
        ArtifactInfo(a.name, a.path.relative_to(run).as_posix(), file_sha256(a.path), a.path.stat().st_size)
        for a in compiled.artifacts
    )


def _metrics(told: Told, model: ir.Model, original: Path) -> Metrics:
    verification = told.verification
    origins = {
        v.name or "": origin_of(v).name for v in (*model.graph.inputs, *(o for n in model.graph for o in n.outputs))
    }
    sizes = {a.name: a.path.stat().st_size for a in told.compiled.artifacts if a.name in ("model", "model_data")}
    return Metrics(
        sqnr_db=_comparisons(verification, lambda one: bounded_db(one.sqnr_db)),
        cosine=_comparisons(verification, lambda one: one.cosine),
        max_abs_error=_comparisons(verification, lambda one: one.max_abs_error),
        top1_agreement=_top1(verification),
        data=verification.data,
        accuracy=verification.accuracy,
        tensors=tuple(_quality(name, origins[name], one) for name, one in verification.tensors.items()),
        size_bytes={"float": _size(original), "quantized": sum(sizes.values())},
        latency_estimate_us=told.estimates,
    )


def _size(original: Path) -> int:
    """A model's size with the weights beside it."""
    model = ir.load(original)
    outside = {t.path: Path(t.path).stat().st_size for t in _external(model)}
    return original.stat().st_size + sum(outside.values())


def _external(model: ir.Model) -> list[ir.ExternalTensor]:
    tensors = [v.const_value for v in model.graph.initializers.values()]
    return [t for t in tensors if isinstance(t, ir.ExternalTensor)]


def _comparisons(verification: Verification, figure: Callable[[Comparison], float]) -> Comparisons:
    def column(agreement: Agreement | None) -> dict[str, float | None] | None:
        if agreement is None:
            return None
        return {name: _number(figure(one)) for name, one in agreement.outputs.items()}

    return Comparisons(
        column(verification.simulation_vs_float) or {},
        column(verification.target_vs_float),
        column(verification.target_vs_simulation),
    )


def _top1(verification: Verification) -> Comparisons:
    def column(agreement: Agreement | None) -> dict[str, float | None] | None:
        return None if agreement is None else dict(agreement.top1)

    return Comparisons(
        column(verification.simulation_vs_float) or {},
        column(verification.target_vs_float),
        column(verification.target_vs_simulation),
    )


def _quality(name: str, original_name: str, one: Comparison) -> TensorQuality:
    return TensorQuality(name, original_name, _number(bounded_db(one.sqnr_db)), _number(one.cosine), one.max_abs_error)


def _number(value: float) -> float | None:
    """What JSON can hold: NaN is nothing."""
    return None if math.isnan(value) else value
