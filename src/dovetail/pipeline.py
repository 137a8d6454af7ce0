"""The pipeline: read, normalize, rewrite, calibrate, decide, ship, verify, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import Data, describe
from dovetail.clock import Clock, Reporter, silent
from dovetail.config import option_values
from dovetail.device.pack import clear_device_folder
from dovetail.errors import InputError
from dovetail.files import file_sha256
from dovetail.finding import Finding, Status
from dovetail.float_graph import cut, depends_on_data, fit_to_data, require_quantizable, rewrite
from dovetail.float_sessions import require_no_crash
from dovetail.job import Job, image_options
from dovetail.model.external_data import external_files
from dovetail.model.split import SplitModel
from dovetail.model.write import DATA, write, write_whole
from dovetail.numerics.methods import RangeMethod
from dovetail.pass_record import PassRecord
from dovetail.passes.normalize import normalize
from dovetail.plan.constraints import build_problem
from dovetail.plan.make import check_pins, observed
from dovetail.plan.pins import left_in_float, resolve_keeps
from dovetail.report.assemble import TAIL, FitRecord, assemble
from dovetail.report.result import Result
from dovetail.run_record import RunOrigin, RunRecord
from dovetail.rundir import RESULT, RunDir, open_rundir
from dovetail.shipping import ShipInputs, ship
from dovetail.stage_files import passed_files, stats_files
from dovetail.stages import KeyedValue, Stages, keyed, unknown
from dovetail.stats import Stats
from dovetail.targets.tool_call import Task, ToolSession, tool_session
from dovetail.verify.calibration_data import check_first_layers, compare_with_held_out
from dovetail.verify.metric import refuse_overlap
from dovetail.verify.verify import check_normalized
from dovetail.versions import core_versions

_FROM_PYTHON = RunOrigin("fit", "dovetail.fit")


def fit(
    job: Job,
    output: Path,
    *,
    force: bool = False,
    resume: bool = False,
    report: Reporter = silent,
    origin: RunOrigin = _FROM_PYTHON,
    amend: Callable[[Result, FitRecord | None, Path], Result] = lambda result, record, run: result,
) -> Result:
    """Run all stages in a run directory; an error leaves nothing behind, an interrupted run can be resumed.

    ``amend`` changes the result before it is written; it gets the records of the stages, unless the run stopped.
    """
    if "device" in job.options.require and job.target.backend.device is None:
        raise InputError(f"--require device: {job.target.name} has no device verdict")
    clock = Clock(report)
    with clock.stage("probe"):
        sha256 = file_sha256(job.path, *external_files(job.path))
    options = option_values(job.options)
    record = RunRecord(origin.kind, origin.command, job.path.name, options, job.compared(sha256))
    use_cache = job.options.cache
    with (
        open_rundir(output, record, force=force, resume=resume) as run,
        tool_session(use_cache=use_cache) as session,
    ):
        result, stage_records = _run_stages(job, run, clock, sha256)
        run.discard_unreached()
        with clock.stage("report"):
            result = amend(result, stage_records, run.path)
        result = replace(
            result,
            timings_s={name: round(seconds, 4) for name, seconds in clock.timings_s.items()},
            compilations=_counts(session, Task.COMPILE, "compiled"),
            target_runs=_counts(session, Task.RUN, "run"),
            notes=(*result.notes, *_cache_notes(session)),
        )
        write_whole(run.path / RESULT, result.to_json())
    return result


def _counts(session: ToolSession, task: Task, made: str) -> dict[str, int]:
    count = session.counts[task]
    return {made: count.made, "from_cache": count.from_cache}


def _cache_notes(session: ToolSession) -> tuple[str, ...]:
    if not session.not_stored:
        return ()
    return (f"results could not be stored in the cache: {session.not_stored}",)


def _run_stages(job: Job, run: RunDir, clock: Clock, sha256: str) -> tuple[Result, FitRecord | None]:
    with clock.stage("probe"):
        probe = job.target.backend.probe()
        versions = {**core_versions(), **probe.versions}
    stages = Stages(run, clock, versions)
    job = _with_reference(job, run)
    graph = _float_graph(job, run, clock, stages, sha256)
    problem = build_problem(graph.model.value, job.target.table)
    request = job.request if job.imported is None else job.request.pinned(left_in_float(problem, job.imported))
    request = request.pinned(resolve_keeps(problem, job.keeps))
    check_pins(graph.model.value, job.target.table, request)
    with clock.stage("try_float"):
        require_no_crash((job.reference, graph.model.value), job.model)
    # Before the comparison, because its error names the activation that is not finite.
    stats = _statistics(job, run, clock, stages, graph.model)
    with clock.stage("held_out"):
        about_data = _check_data(job, run, graph.model.value, stats.value)
    with clock.stage("check_normalized"):
        normalized = check_normalized(job.reference, graph.split, job.data, job.options.thresholds)
    record = None
    if normalized.status is Status.FAIL:
        clear_device_folder(run.path)
    else:
        record = ship(job, run, clock, stages, ShipInputs(graph.model, stats, request, graph.split, probe))
        record = replace(record, findings=(*about_data, *record.findings))
    with clock.stage("report"):
        result = assemble(job, run.path, graph.split, sha256, normalized, graph.passes, record, versions)
    return result, record


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
    )
    model, rewrites = rewritten.value
    require_quantizable(model)
    records = (*normalized.value[1], *rewrites)
    if not job.options.range_repair or not depends_on_data(model, job.data):
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
