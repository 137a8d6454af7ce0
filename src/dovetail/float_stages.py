"""The stages up to the statistics of the float graph: normalize, split, rewrite, calibrate; and the request for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import Data, describe
from dovetail.calibrate.moved_tensors import moved_tensors
from dovetail.clock import Clock
from dovetail.errors import InputError
from dovetail.finding import Finding
from dovetail.float_graph import cut, depends_on_data, fit_to_data, require_quantizable, rewrite
from dovetail.float_sessions import require_no_crash
from dovetail.job import Job, image_options
from dovetail.model.split import SplitModel
from dovetail.model.write import DATA, write
from dovetail.numerics.methods import RangeMethod
from dovetail.pass_record import PassRecord
from dovetail.passes.fit_sentinels import forget_bounded
from dovetail.passes.normalize import normalize
from dovetail.plan.constraints import build_problem
from dovetail.plan.imported_qparams import ImportedQParams
from dovetail.plan.make import check_pins, observed
from dovetail.plan.pins import imported_pins, resolve_keeps
from dovetail.plan.request import Request
from dovetail.plan.requested_weights import RequestedWeights
from dovetail.report.assemble import TAIL
from dovetail.rundir import RunDir
from dovetail.stage_files import passed_files, stats_files
from dovetail.stages import KeyedValue, Stages, keyed, unknown
from dovetail.stats import Stats
from dovetail.verify.calibration_data import check_first_layers, compare_with_held_out
from dovetail.verify.metric import refuse_overlap


@dataclass(frozen=True, slots=True, eq=False)
class CalibratedGraph:
    """The float graph that is quantized, its statistics, the request for its plan, the split original, the records of
    the passes, and findings about the calibration data.

    ``job``: as given, with the file that everything is compared with.
    """

    job: Job
    model: KeyedValue[ir.Model]
    stats: KeyedValue[Stats]
    request: Request
    split: SplitModel
    passes: tuple[PassRecord, ...]
    findings: tuple[Finding, ...]


def calibrated_graph(job: Job, run: RunDir, clock: Clock, stages: Stages, sha256: str) -> CalibratedGraph:
    """Run the stages on the float graph; ``sha256``: of the caller's files."""
    job = _with_reference(job, run)
    graph = _float_graph(job, run, clock, stages, sha256)
    problem = build_problem(graph.model.value, job.target.table)
    request = job.request
    if job.imported is not None:
        request = request.pinned(imported_pins(problem, job.imported, request.precision))
    request = request.pinned(resolve_keeps(problem, job.keeps))
    check_pins(graph.model.value, job.target.table, request)
    with clock.stage("try_float"):
        require_no_crash((job.reference, graph.model.value), job.model)
    if job.imported is not None and job.imported.from_file:
        with clock.stage("try_float"):
            job = replace(job, imported=_with_moved(job.imported, job, run, graph.model.value))
    # Before anything is compared, because its error names the activation that is not finite.
    stats = _statistics(job, run, clock, stages, graph.model)
    with clock.stage("held_out"):
        findings = _check_data(job, run, graph.model.value, stats.value)
    return CalibratedGraph(job, graph.model, stats, request, graph.split, graph.passes, findings)


def _with_moved(imported: ImportedQParams, job: Job, run: RunDir, model: ir.Model) -> ImportedQParams:
    """The imported qparams with the tensors of the rewritten graph that hold the values of an original one."""
    sample = next(iter(job.data.samples()))
    return replace(imported, moved=moved_tensors(job.model, model, imported.tensors, sample, run.stages))


def _with_reference(job: Job, run: RunDir) -> Job:
    """Write the model as it was read, to compare with, if its file cannot be run or computes in float16."""
    return replace(job, as_read=write(job.model, run.stages / "read.onnx")[0]) if job.changes else job


@dataclass(frozen=True, slots=True, eq=False)
class _FloatGraph:
    """The graph that is quantized, the split original, and the records of the passes."""

    model: KeyedValue[ir.Model]
    split: SplitModel
    passes: tuple[PassRecord, ...]


def _float_graph(job: Job, run: RunDir, clock: Clock, stages: Stages, sha256: str) -> _FloatGraph:
    """Normalize the caller's model, split off the tail that the target cannot run, and apply the target's rewrites."""
    source = KeyedValue(job.model, f"{sha256} {keyed(dict(job.options.shape)).key}")
    normalized = stages.make(
        "normalize",
        normalize,
        passed_files(run.stages / "normalized.onnx"),
        model=source,
        repair_ranges=keyed(job.options.range_repair),
    )
    with clock.stage("split"):
        split = cut(normalized.value[0], job.target)
        _write_tail(job, run, split)
    rewritten = stages.make(
        "rewrite",
        rewrite,
        passed_files(run.stages / "rewritten.onnx"),
        head=KeyedValue(split.head, normalized.key),
        target=KeyedValue(job.target, job.target_key),
        original=source,
        weights=_requested_weights(job),
    )
    model, rewrites = rewritten.value
    require_quantizable(model)
    records = (*normalized.value[1], *rewrites)
    if not job.options.range_repair or not depends_on_data(model, job.data):
        forget_bounded(model)
        return _FloatGraph(KeyedValue(model, rewritten.key), replace(split, head=model), records)
    with clock.stage("try_float"):
        require_no_crash((model,), job.model)
    fitted = stages.make(
        "fit_sentinels",
        lambda model, data: fit_to_data(model, data, run.stages),
        passed_files(run.stages / "fitted.onnx"),
        model=KeyedValue(model, rewritten.key),
        data=_data(job),
    )
    model, more = fitted.value
    return _FloatGraph(KeyedValue(model, fitted.key), replace(split, head=model), (*records, *more))


def _requested_weights(job: Job) -> KeyedValue[RequestedWeights]:
    """The weights that the caller requests; imported ones are those of the model or of the file with the scales."""
    requested = RequestedWeights(job.request.precision, job.keeps, job.imported, job.plan)
    keeps = [(str(keep), str(keep.precision.weight)) for keep in job.keeps]
    return KeyedValue(requested, keyed([str(job.request.precision.weight), keeps, job.plan_key, job.encodings_key]).key)


def _write_tail(job: Job, run: RunDir, split: SplitModel) -> None:
    """Write the tail that the target cannot run, if there is one."""
    path = run.path / TAIL
    for stale in (path, path.with_name(path.name + DATA)):
        stale.unlink(missing_ok=True)
    if split.tail is not None:
        if job.options.io == "quantized":
            raise InputError(f"--io quantized is not supported for a split model: {TAIL} has float inputs")
        write(split.tail, path)


def _data(job: Job) -> KeyedValue[Data]:
    """The calibration data, keyed by its content and how images are read."""
    return KeyedValue(job.data, f"{job.data_key} {image_options(job.options)}") if job.data_key else unknown(job.data)


def _statistics(job: Job, run: RunDir, clock: Clock, stages: Stages, model: KeyedValue[ir.Model]) -> KeyedValue[Stats]:
    """Calibrate the float graph."""
    names = observed(model.value, job.target.table)
    return stages.make(
        "calibrate",
        lambda model, names, data, histograms: collect(
            model, names, data, workdir=run.stages, histograms=histograms, progress=clock.progress
        ),
        stats_files(run.stages / "stats.npz"),
        model=model,
        names=keyed(names),
        data=_data(job),
        histograms=keyed(job.request.method != RangeMethod.MINMAX),
    )


def _check_data(job: Job, run: RunDir, model: ir.Model, stats: Stats) -> tuple[Finding, ...]:
    """Refuse held-out samples that are also calibration samples, and find data that the model cannot be made for."""
    findings = check_first_layers(model, job.data, run.stages)
    if job.evaluation is None:
        return findings
    held_out = describe(job.evaluation.data, model)
    of_ranges = compare_with_held_out(model, stats, held_out.samples())
    refuse_overlap(stats.digests, held_out.digests)
    return (*findings, *of_ranges)
