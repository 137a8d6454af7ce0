"""Assembling the result of a run from the records of its stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

import dovetail
from dovetail.backend import Artifact, CompileResult, MeasuredLatency
from dovetail.config import option_values
from dovetail.files import file_sha256
from dovetail.finding import Finding, Status, Verdict, passes_when
from dovetail.job import Job
from dovetail.model.origin import origin_of
from dovetail.model.split import SplitModel
from dovetail.model.write import DATA
from dovetail.numerics.metrics import Comparison
from dovetail.pass_record import PassRecord
from dovetail.passes.normalize import RANGE_REPAIR_NAMES
from dovetail.plan.rows import plan_rows
from dovetail.report.graph_rows import lowest_tensors, operator_rows, tensor_ranges
from dovetail.report.result import (
    ArtifactInfo,
    Comparisons,
    Metrics,
    Result,
    Spread,
    SpreadComparisons,
    TensorLoss,
    TensorQuality,
)
from dovetail.stats import Stats
from dovetail.storage import Plan
from dovetail.trials.baselines import BaselineComparison
from dovetail.trials.decision import Decision
from dovetail.verify.compare import Agreement
from dovetail.verify.low_accuracy import by_original_name
from dovetail.verify.verdicts import bounded_db
from dovetail.verify.verify import Verification

# The model of what the target cannot run, in the run directory.
TAIL = "tail.onnx"
_VERDICTS = ("normalized", "compiled", "fidelity", "numerics", "accuracy")
_BUDGET, _DEVICE = "budget", "device"
# How many repaired ranges the notes list.
_LISTED_REPAIRS = 8
_SWITCH_OFF = "--no-range-repair leaves these ranges as they are"
# Field of ``Metrics`` -> its value in a comparison.
_FIGURES: Mapping[str, Callable[[Comparison], float]] = {
    "sqnr_db": lambda comparison: bounded_db(comparison.sqnr_db),
    "cosine": lambda comparison: comparison.cosine,
    "max_abs_error": lambda comparison: comparison.max_abs_error,
}
_TOP1 = "top1_agreement"
_INTEGERS = "equal_integers"


@dataclass(frozen=True, slots=True)
class FitRecord:
    """The records of the stages after normalization; there is none if the run stopped before them."""

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
    """Assemble a result, without the timings; a verdict that no stage reached is not checked."""
    model = split.head
    known = {"normalized": normalized, **(record.verification.verdicts if record else {})}
    if record is not None and record.device is not None:
        known[_DEVICE] = record.device
    names = (*_VERDICTS, *((_BUDGET,) if job.has_budget else ()))
    names = names if job.target.backend.device is None else (*names, _DEVICE)
    not_reached = (
        "not reached: the verdict `normalized` failed (the graph to be quantized and the original model have different "
        "outputs), so the run stopped"
    )
    verdicts = {
        name: known.get(name) or Verdict(Status.NOT_CHECKED, not_reached, passes_when(name, job.options.thresholds))
        for name in names
    }
    return Result(
        target=job.options.target,
        option=job.options.option,
        options=option_values(job.options),
        precision=job.options.precision,
        model=job.path.name,
        model_sha256=model_sha256,
        calibration=record.stats.data if record else None,
        verdicts=verdicts,
        thresholds=job.options.thresholds,
        metrics=_metrics(record, model, job, run) if record else Metrics(),
        plan=tuple(plan_rows(record.plan, model)) if record else (),
        read_back=record.verification.read_back.tensors if record and record.verification.read_back else (),
        findings=(*record.findings, *record.compiled.findings) if record else (),
        passes=tuple(pass_record for pass_record in passes if pass_record.changed or pass_record.declined),
        artifacts=_artifacts(record.compiled, run) if record else (),
        decisions=record.decisions if record else (),
        operators=operator_rows(model) if record else (),
        tail=split.cut,
        versions=versions,
        timings_s={},
        run=run.name,
        notes=(*_notes(job, record), *_repaired_ranges(passes), *(record.compiled.notes if record else ())),
    )


def _notes(job: Job, record: FitRecord | None) -> tuple[str, ...]:
    notes = list(job.target.backend.runner.notes)
    notes += [f"the reference is the model as it was read, not the unmodified file: {change}" for change in job.changes]
    if job.data.random:
        notes.append("calibrated on random data: the metrics do not tell how accurate the model is")
    if job.options.baselines == "all" and not job.target.backend.baselines:
        notes.append(f"--baselines all: {job.target.name} has no baselines, so nothing was compared")
    if job.options.emulate is not None and record is not None:
        ran = record.verification.target_vs_float
        if ran is not None and ran.samples < job.options.emulate:
            notes.append(f"{ran.samples} samples were emulated, not {job.options.emulate}: the data has no more")
    if record is not None:
        notes += _raised_scales(record.plan)
    if job.evaluation is None:
        notes.append("no held-out data was given: the metrics per output were measured on calibration samples")
    return tuple(notes)


def _repaired_ranges(passes: tuple[PassRecord, ...]) -> list[str]:
    """The tensors whose range was made smaller, and how."""
    sites = [site for record in passes if record.name in RANGE_REPAIR_NAMES for site in record.changed]
    notes = [f"range repaired: {site.where!r}: {site.what}" for site in sites[:_LISTED_REPAIRS]]
    if len(sites) > len(notes):
        notes.append(f"range repaired: {len(sites) - len(notes)} more tensors, see passes")
    return [*notes, *([_SWITCH_OFF] if notes else [])]


def _raised_scales(plan: Plan) -> list[str]:
    """How many weight scales are larger than the weights alone require."""
    raised = [choice.raised_channels for choice in plan.edges.values() if choice.raised_channels]
    if not raised:
        return []
    return [
        f"the scales of {sum(raised)} channels in {len(raised)} weights were raised, because the target would "
        "compute smaller ones wrongly or an int32 bias would overflow: see raised_channels and detail in the plan"
    ]


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
            a.load,
        )
        for a in _all_artifacts(compiled, run)
    )


def _all_artifacts(compiled: CompileResult, run: Path) -> tuple[Artifact, ...]:
    """The artifacts of the compiler, and the tail if there is one, which ships too."""
    tail = [("tail" if path.name == TAIL else "tail_data", path) for path in sorted(run.glob(f"{TAIL}*"))]
    load = f'onnxruntime.InferenceSession("{TAIL}"), which continues from the outputs of the compiled model'
    return (
        *compiled.artifacts,
        *(Artifact(name, path, shipped=True, load=load if name == "tail" else "") for name, path in tail),
    )


def _metrics(record: FitRecord, model: ir.Model, job: Job, run: Path) -> Metrics:
    verification, measured = record.verification, record.beside.measured
    estimated = record.beside.estimated
    comparisons = _comparisons(verification)
    origins = {
        v.name or "": origin_of(v).name for v in (*model.graph.inputs, *(o for n in model.graph for o in n.outputs))
    }
    tensors = tuple(_quality(name, origins[name], comparison) for name, comparison in verification.tensors.items())
    losses = _losses(verification, origins)
    return Metrics(
        sqnr_db=comparisons["sqnr_db"],
        cosine=comparisons["cosine"],
        max_abs_error=comparisons["max_abs_error"],
        top1_agreement=comparisons["top1_agreement"],
        equal_integers=comparisons["equal_integers"],
        sqnr_db_per_sample=_spreads(verification),
        data=verification.data,
        target_samples=_target_samples(verification),
        accuracy=verification.accuracy,
        accuracy_emulated=verification.emulated,
        tensors=tensors,
        losses=losses,
        ranges=tensor_ranges(model, lowest_tensors(tensors, losses, record.plan), job.data.samples, run),
        size_bytes={"float": _size(job.path), **_shipped_bytes(record.compiled, run)},
        latency_estimate_us={
            name: program.estimate for name, program in estimated.items() if program.estimate is not None
        },
        traffic_bytes={name: program.traffic for name, program in estimated.items() if program.traffic is not None},
        not_estimated={
            name: why for name, program in estimated.items() if (why := program.error or program.not_estimated)
        },
        placement=record.compiled.placement,
        latency_measured=measured if isinstance(measured, MeasuredLatency) else None,
        not_measured=measured if isinstance(measured, str) else "",
    )


def _shipped_bytes(compiled: CompileResult, run: Path) -> dict[str, int]:
    """The size of every shipped file by name, with its external data."""
    sizes: dict[str, int] = {}
    for artifact in _all_artifacts(compiled, run):
        if artifact.shipped and not compiled.error:
            name = artifact.path.name.removesuffix(DATA)
            sizes[name] = sizes.get(name, 0) + artifact.path.stat().st_size
    return sizes


def _size(original: Path) -> int:
    """The size of a model with its external data."""
    model = ir.load(original)
    external = {t.path: Path(t.path).stat().st_size for t in _external(model)}
    return original.stat().st_size + sum(external.values())


def _external(model: ir.Model) -> list[ir.ExternalTensor]:
    tensors = [v.const_value for v in model.graph.initializers.values()]
    return [t for t in tensors if isinstance(t, ir.ExternalTensor)]


def columns(agreement: Agreement | None) -> dict[str, dict[str, float | None] | None]:
    """Field of ``Metrics`` -> its value per output; None if nothing was compared."""
    if agreement is None:
        return dict.fromkeys((*_FIGURES, _TOP1, _INTEGERS))
    figures = {
        field: {name: _none_if_nan(figure(comparison)) for name, comparison in agreement.outputs.items()}
        for field, figure in _FIGURES.items()
    }
    equal = {name: _none_if_nan(agreement.outputs[name].equal_fraction) for name in sorted(agreement.integer)}
    return {**figures, _TOP1: dict(agreement.top1), _INTEGERS: equal}


def _comparisons(verification: Verification) -> dict[str, Comparisons]:
    """Field of ``Metrics`` -> its values on this machine; ``dovetail verify`` adds those of a device."""
    simulation_vs_float = columns(verification.simulation_vs_float)
    target_vs_float = columns(verification.target_vs_float)
    target_vs_simulation = columns(verification.target_vs_simulation)
    same_samples = columns(verification.simulation_where_target_ran)
    return {
        name: Comparisons(
            simulation_vs_float[name] or {},
            target_vs_float[name],
            target_vs_simulation[name],
            simulation_where_target_ran=same_samples[name],
        )
        for name in simulation_vs_float
    }


def _target_samples(verification: Verification) -> int | None:
    ran = verification.target_vs_float
    return None if ran is None else ran.samples * verification.per_call


def _spreads(verification: Verification) -> SpreadComparisons:
    """The spread over the samples, of simulation and target on the same ones."""
    simulation = verification.simulation_where_target_ran or verification.simulation_vs_float
    target = verification.target_vs_float
    return SpreadComparisons(_spread(simulation), None if target is None else _spread(target))


def _spread(agreement: Agreement) -> dict[str, Spread]:
    spreads = {}
    for name, values in agreement.per_sample.items():
        figures = np.array([bounded_db(value) for value in values if not math.isnan(value)])
        if figures.size:
            spreads[name] = Spread(float(figures.mean()), float(figures.std()), float(figures.min()), figures.size)
    return spreads


def _losses(verification: Verification, origins: Mapping[str, str]) -> tuple[TensorLoss, ...]:
    """The SQNR if only this tensor is quantized, for each tensor of the caller's model, worst first."""
    of_tensor = {origins[name]: comparison.sqnr_db for name, comparison in verification.tensors.items()}
    return tuple(
        TensorLoss(name, loss_db, _none_if_nan(bounded_db(of_tensor.get(name, math.nan))))
        for name, loss_db in by_original_name(verification.losses, origins)
    )


def _quality(name: str, original_name: str, comparison: Comparison) -> TensorQuality:
    sqnr_db, cosine = _none_if_nan(bounded_db(comparison.sqnr_db)), _none_if_nan(comparison.cosine)
    return TensorQuality(name, original_name, sqnr_db, cosine, comparison.max_abs_error)


def _none_if_nan(value: float) -> float | None:
    """Replace NaN, which JSON cannot hold, by None."""
    return None if math.isnan(value) else value
