"""The pipeline: read, normalize, rewrite, calibrate, decide, ship, verify, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dovetail.clock import Clock, Reporter, silent
from dovetail.config import option_values
from dovetail.device.pack import clear_device_folder
from dovetail.errors import InputError
from dovetail.files import file_sha256
from dovetail.finding import Status
from dovetail.float_stages import calibrated_graph
from dovetail.job import Job
from dovetail.model.external_data import external_files
from dovetail.model.write import write_whole
from dovetail.report.assemble import FitRecord, assemble
from dovetail.report.result import Result
from dovetail.run_record import RunOrigin, RunRecord
from dovetail.rundir import RESULT, RunDir, open_rundir
from dovetail.shipping import ShipInputs, ship
from dovetail.stages import Stages
from dovetail.targets.tool_call import Task, ToolSession, tool_session
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
    graph = calibrated_graph(job, run, clock, stages, sha256)
    job = graph.job
    with clock.stage("check_normalized"):
        normalized = check_normalized(job.reference, graph.split, job.data, job.options.thresholds)
    record = None
    if normalized.status is Status.FAIL:
        clear_device_folder(run.path)
    else:
        inputs = ShipInputs(graph.model, graph.stats, graph.request, graph.split, probe)
        record = ship(job, run, clock, stages, inputs)
        record = replace(record, findings=(*graph.findings, *record.findings))
    with clock.stage("report"):
        result = assemble(job, run.path, graph.split, sha256, normalized, graph.passes, record, versions)
    return result, record
