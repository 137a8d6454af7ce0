"""The straight line: read, normalize, rewrite, calibrate, plan, emit, compile, verify, report."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import Artifact, BaselineCase, Compiled, Measured, Probe, Sample
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import describe
from dovetail.calibrate.record import load_stats, save_stats
from dovetail.config import BASELINES
from dovetail.device.pack import leave_device_folder
from dovetail.errors import InputError
from dovetail.finding import Status
from dovetail.job import Job
from dovetail.model.external_data import external_files
from dovetail.model.origin import adopt_lost
from dovetail.model.read import require_float32, require_known_shapes
from dovetail.model.split import Parts, split
from dovetail.model.write import write, write_whole
from dovetail.numerics.methods import RangeMethod
from dovetail.pass_record import PassRecord
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.plan.constraints import build_problem
from dovetail.plan.make import make_plan, narrower, observed
from dovetail.plan.pins import resolve_keeps
from dovetail.plan.request import Pin, Pins
from dovetail.plan.validate import validate_plan
from dovetail.report.assemble import TAIL, Told, assemble
from dovetail.report.result import Result
from dovetail.rules.check import Subject, check
from dovetail.rundir import RunDir, chain_key, file_sha256, open_rundir
from dovetail.search.choices import choose
from dovetail.search.operands import SAMPLES as SEARCH_SAMPLES
from dovetail.search.operands import choose_operands
from dovetail.search.rivals import Score, Trials
from dovetail.stage_files import (
    Planned,
    load_compiled,
    load_passed,
    load_planned,
    save_compiled,
    save_passed,
    save_planned,
)
from dovetail.stats import Stats
from dovetail.storage import Plan, Why
from dovetail.verify.metric import measure, refuse_overlap
from dovetail.verify.verify import Built, check_normalized, verify
from dovetail.versions import core_versions

Reporter = Callable[[str, int, int | None], None]
# How many samples a naive export is calibrated on: its figures are of speed.
BASELINE_SAMPLES = 8
# How many samples decide between precisions, and about merges.
CHOICE_SAMPLES = 16
# How many held-out samples each of several precisions is scored on, beside that.
SCORED_SAMPLES = 500
# Where they are compiled, in the folder of the stages, and what the one that was taken is called beside baselines.
TRIALS, FITTED = "trials", "fitted"


def silent(stage: str, done: int, total: int | None) -> None:
    """A reporter that says nothing."""


def fit(job: Job, output: Path, *, force: bool = False, resume: bool = False, report: Reporter = silent) -> Result:
    """Run the line into a run directory; a refusal leaves nothing behind, an interruption what can be resumed."""
    if "device" in job.options.require and job.target.device is None:
        raise InputError(f"--require device: {job.target.name} has no device to bring outputs back from")
    asked = {"model": job.path.name, "options": repr(job.options)}
    with open_rundir(output, asked, force=force, resume=resume) as run:
        return _line(job, run, report)


def _line(job: Job, run: RunDir, report: Reporter) -> Result:
    clock = Clock(report)
    with clock.stage("probe"):
        probe = job.target.probe()
        versions = {**core_versions(), **probe.versions}
        sha256 = file_sha256(job.path, *external_files(job.path))
    parts, passes, key = _float_graph(job, run, clock, chain_key(sha256, versions=versions, shape=job.options.shape))
    # Before the comparison, because it names the activation that is not finite.
    stats, key = _statistics(job, run, clock, key, parts.head)
    with clock.stage("check_normalized"):
        normalized = check_normalized(job.path, parts, job.data, job.options.thresholds)
    told = None
    if normalized.status is not Status.FAIL and not job.refused:
        pins = resolve_keeps(build_problem(parts.head, job.target), job.keeps)
        pinned = replace(job, request=job.request.pinned(pins))
        told = _fitted(pinned, run, clock, key, parts, stats, probe)
    with clock.stage("report"):
        result = assemble(
            job,
            run.path,
            parts,
            model_sha256=sha256,
            normalized=normalized,
            passes=passes,
            told=told,
            versions=versions,
        )
    result = replace(result, timings_s={name: round(seconds, 4) for name, seconds in clock.timings_s.items()})
    write_whole(run.path / "result.json", result.to_json())
    return result


def _float_graph(job: Job, run: RunDir, clock: Clock, key: str) -> tuple[Parts, tuple[PassRecord, ...], str]:
    """The caller's model in canonical form, cut where the target cannot run it, then as the target wants it."""
    with clock.stage("normalize"):
        path = run.stages / "normalized.onnx"
        normalized, passes = run.stage(
            "normalize", key, lambda: normalize(job.model), lambda r: save_passed(r, path), lambda: load_passed(path)
        )
        parts = _split(job, run, normalized)
    with clock.stage("rewrite"):
        key = chain_key(key, target=job.options.target, option=job.options.option)
        path = run.stages / "rewritten.onnx"
        model, rewrites = run.stage(
            "rewrite", key, lambda: _rewrite(job, parts.head), lambda r: save_passed(r, path), lambda: load_passed(path)
        )
        require_float32(model)
        require_known_shapes(model)
    return replace(parts, head=model), (*passes, *rewrites), key


def _split(job: Job, run: RunDir, normalized: ir.Model) -> Parts:
    parts = split(normalized, job.target.outside)
    path = run.path / TAIL
    path.unlink(missing_ok=True)
    if parts.tail is not None:
        if job.options.io == "quantized":
            raise InputError(f"--io quantized: the model is cut in two, and {TAIL} takes real numbers")
        write(parts.tail, path)
    return parts


def _rewrite(job: Job, head: ir.Model) -> tuple[ir.Model, tuple[PassRecord, ...]]:
    model = head.clone()
    records = [each(model) for each in job.target.rewrites] + [infer_shapes(model)]
    adopt_lost(job.model.graph, model.graph)
    return model, tuple(records)


def _statistics(job: Job, run: RunDir, clock: Clock, key: str, model: ir.Model) -> tuple[Stats, str]:
    """What the float graph does on the calibration data, none of which may be held out for figures."""
    histograms = job.request.method != RangeMethod.MINMAX
    with clock.stage("calibrate"):
        key = chain_key(key, data=job.data_key or os.urandom(8).hex(), histograms=histograms)
        path = run.stages / "stats.npz"
        names = observed(model, job.target)
        stats = run.stage(
            "calibrate",
            key,
            lambda: collect(model, names, job.data, workdir=run.stages, histograms=histograms, progress=clock.progress),
            lambda s: save_stats(s, path),
            lambda: load_stats(path),
        )
    if job.evaluation is not None:
        with clock.stage("held_out"):
            held_out = describe(job.evaluation.data, model)
            for _ in held_out.samples():
                pass
            refuse_overlap(stats.digests, held_out.digests)
    return stats, key


def _fitted(job: Job, run: RunDir, clock: Clock, key: str, parts: Parts, stats: Stats, probe: Probe) -> Told:
    """The quantized graph; where the compiler got an operator wrong, with that one kept out of integers if it helps."""
    told = _quantized_graph(job, run, clock, key, parts, stats, probe)
    wrong, island = told.verification.located, job.target.island
    if wrong is None or island is None or job.plan is not None:
        return told
    text = f"computed wrongly in integers: kept in {island.name}"
    pins = Pins({wrong.unit: Pin(island, Why.MEASURED, text)})
    around = replace(job, request=job.request.pinned(pins))
    other = _quantized_graph(around, run, clock, key, parts, stats, probe)
    if other.verification.verdicts["numerics"].status is Status.PASS:
        note = (
            f"{wrong.op_type} {wrong.node!r} is kept in {island.name}: {told.verification.verdicts['numerics'].reason}"
        )
        return replace(other, notes=(*other.notes, note))
    again = _quantized_graph(job, run, clock, key, parts, stats, probe)
    note = f"keeping {wrong.op_type} {wrong.node!r} in {island.name} was tried and does not help"
    return replace(again, notes=(*again.notes, note))


def _quantized_graph(job: Job, run: RunDir, clock: Clock, key: str, parts: Parts, stats: Stats, probe: Probe) -> Told:
    """Plan, artifacts, what the compiler made of them, and what is true of it."""
    model = parts.head
    with clock.stage("plan"):
        key = chain_key(
            key,
            request=repr(job.request),
            plan=job.plan_key,
            operands=job.options.operands,
            precision=job.options.precision,
            available=probe.available,
        )
        path = run.path / "plan.json"
        shutil.rmtree(run.stages / TRIALS, ignore_errors=True)  # those of a run that was interrupted
        plan, search, choices = run.stage(
            "plan",
            chain_key(key, scored_on=_score_key(job)),  # the compiler is given the same graph, whatever the figures
            lambda: _plan(job, model, stats, run.stages, clock, probe),
            lambda made: save_planned(made, model, path, run.stages),
            lambda: load_planned(path, run.stages),
        )
        findings = check(Subject(model, job.target, plan=plan, stats=stats))
    with clock.stage("emit"):
        artifacts = job.target.emit(model, plan, run.path)
    with clock.stage("compile"):
        folder = run.path / "compile"
        folder.mkdir(exist_ok=True)
        compiled = run.stage(
            "compile",
            key,
            lambda: _compile(job, artifacts, run, plan) if probe.available else Compiled(artifacts),
            lambda c: save_compiled(c, folder),
            lambda: load_compiled(folder),
            final=lambda c: c.finished,
        )
        shutil.rmtree(run.stages / TRIALS, ignore_errors=True)
    with clock.stage("baselines"):
        estimated = _baselines(job, model, folder, compiled)
        measured = _measured(job, model, folder, compiled)
    with clock.stage("verify"):
        built = Built(job.path, model, plan, compiled, probe, parts.tail)
        verification = verify(built, job.target, job.data, job.evaluation, job.options.thresholds, clock.progress)
    with clock.stage("device"):
        samples = job.data if job.evaluation is None else job.evaluation.data
        device = leave_device_folder(run.path, built, job.target, samples, job.options.thresholds)
    notes = () if choices is None else choices.notes
    return Told(
        stats,
        plan,
        compiled,
        verification,
        findings,
        estimated,
        search,
        device,
        notes,
        choices=choices,
        measured=measured,
    )


def _baselines(job: Job, model: ir.Model, folder: Path, compiled: Compiled) -> dict[str, Compiled]:
    """What the vendor estimates figures for: the fitted model, and what it is compared with."""
    if compiled.error:
        return {}
    found = {"fitted": compiled}
    if job.target.baseline is None or compiled.estimate is None:
        return found
    samples = list(itertools.islice(job.data.samples(), BASELINE_SAMPLES))
    for name in BASELINES[job.options.baselines]:
        case = BaselineCase(name, model, job.path, job.options.precision, samples, job.options.shape)
        found[name] = job.target.baseline(case, folder)
    return found


def _compile(job: Job, artifacts: tuple[Artifact, ...], run: RunDir, plan: Plan) -> Compiled:
    """What the compiler makes of the graph; where the same bytes were compiled when the precision was chosen, that."""
    folder, trial = run.path / "compile", run.stages / TRIALS / plan.precision
    tried = [trial / artifact.path.name for artifact in artifacts]
    there = job.target.trial is None and all(path.exists() for path in tried)
    if not there or file_sha256(*tried) != file_sha256(*(artifact.path for artifact in artifacts)):
        return job.target.compile(artifacts, folder)
    shutil.copytree(trial / "compile", folder, dirs_exist_ok=True)
    return load_compiled(folder)


def _measured(job: Job, model: ir.Model, folder: Path, compiled: Compiled) -> Measured | str | None:
    """The latency beside that of the stock program in float, where the target runs here and a comparison is wanted."""
    target, wanted = job.target, len(BASELINES[job.options.baselines])
    if compiled.placement is None or target.measure is None or target.baseline is None or not wanted:
        return None
    (sample,) = itertools.islice(job.data.samples(), 1)
    programs = {FITTED: compiled}
    for name in target.stock[:wanted]:
        case = BaselineCase(name, model, job.path, job.options.precision, [sample], job.options.shape)
        programs[name] = target.baseline(case, folder)
        if programs[name].error:
            return f"{name} was not compiled: {programs[name].error}"
    return target.measure(programs, target.stock[0], sample)


def _plan(job: Job, model: ir.Model, stats: Stats, workdir: Path, clock: Clock, probe: Probe) -> Planned:
    """The given plan, or one made for this target, with what can be chosen by measuring searched."""
    search = choices = None
    request, candidates = job.request, job.target.choices.get(job.options.precision, ())
    if job.plan is not None:
        validate_plan(job.plan, model, job.target)
        return job.plan, None, None
    if job.given is not None:
        plan = make_plan(model, job.target, stats, job.request, job.given)
        validate_plan(plan, model, job.target)
        return plan, None, None
    if candidates or job.target.floats_merges:
        samples = list(itertools.islice(job.data.samples(), CHOICE_SAMPLES))
        trials = None
        if candidates and probe.available and job.target.run is not None:
            trials = Trials(model, job.target, stats, samples, workdir / TRIALS, save_compiled, _score(job, model))
        request, choices = choose(model, job.target, stats, request, candidates, samples, trials)
    if job.options.operands == "auto":
        samples = list(itertools.islice(job.data.samples(), SEARCH_SAMPLES))
        plan, search = choose_operands(model, job.target, stats, request, samples, workdir, clock.progress)
    else:
        if job.options.operands == "narrow":
            request = request.pinned(Pins(operands=narrower(model, job.target, stats, request)))
        plan = make_plan(model, job.target, stats, request)
    validate_plan(plan, model, job.target)
    return plan, search, choices


def _score(job: Job, model: ir.Model) -> Score | None:
    """The caller's metric on some of the held-out samples, for every candidate alike."""
    held_out, inputs = job.evaluation, frozenset(str(value.name) for value in model.graph.inputs)
    if held_out is None or held_out.metric is None or job.target.outside:
        return None
    metric, name, data = held_out.metric, held_out.metric_name, held_out.data

    def samples() -> Iterator[Sample]:
        return itertools.islice(data.samples(), SCORED_SAMPLES)

    def figures(outputs: Iterator[Sample]) -> Mapping[str, float]:
        return measure(
            metric, name, lambda some: (one for _, one in zip(some, outputs, strict=True)), samples(), inputs
        )

    return Score(samples, figures)


def _score_key(job: Job) -> str:
    """What the figures of candidates were measured by; where that cannot be told, none is like another."""
    held_out = job.evaluation
    if held_out is None or held_out.metric is None or not job.target.choices.get(job.options.precision):
        return ""
    return held_out.key or os.urandom(8).hex()


class Clock:
    """CPU seconds per stage, children included, and word to the reporter of what is going on.

    A stage that runs several times, as where an operator is tried in another precision, has the sum.
    """

    def __init__(self, report: Reporter) -> None:
        self.timings_s: dict[str, float] = {}
        self._report = report
        self._now = ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._now = name
        self._report(name, 0, None)
        before = _cpu_seconds()
        try:
            yield
        finally:
            self.timings_s[name] = self.timings_s.get(name, 0.0) + _cpu_seconds() - before

    def progress(self, done: int, total: int | None) -> None:
        self._report(self._now, done, total)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
