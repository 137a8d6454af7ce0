"""Decide, build, ship, verify: from the float graph and its statistics to what is true of what ships."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from dovetail.backend import BaselineCase, CompileResult, Probe, Sample
from dovetail.catalog import rules_for
from dovetail.clock import Clock
from dovetail.device.pack import leave_device_folder
from dovetail.job import Job
from dovetail.model.split import SplitModel
from dovetail.plan.request import Request
from dovetail.plan.validate import validate_plan
from dovetail.report.assemble import FitRecord
from dovetail.rules.check import check
from dovetail.rules.check_input import CheckInput
from dovetail.rundir import RunDir
from dovetail.stage_files import Shipment, shipment_files
from dovetail.stages import KeyedValue, Stages, keyed, unknown
from dovetail.stats import Stats
from dovetail.target import Target
from dovetail.trials.baselines import BaselineComparison, compare
from dovetail.trials.run_trials import Verify, run_trials, with_place
from dovetail.trials.variant import Variant
from dovetail.trials.workbench import COMPILED, Build, Score, Workbench
from dovetail.verify.metric import measure
from dovetail.verify.verify import BuildInputs, Verification, verify

# Where variants are built, in the folder of the stages.
TRIALS = "trials"
# How many samples a baseline may calibrate on: its figures are of speed.
BASELINE_SAMPLES = 8
# How many held-out samples each of several precisions is scored on.
SCORED_SAMPLES = 500


@dataclass(frozen=True, slots=True, eq=False)
class ShipInputs:
    """What there is before anything is decided: the float graph, its statistics, what is asked of its plan, the parts
    of the original that it belongs to, and whether the target's tools are here."""

    model: KeyedValue[ir.Model]
    stats: KeyedValue[Stats]
    request: Request
    split: SplitModel
    probe: Probe


def ship(job: Job, run: RunDir, clock: Clock, stages: Stages, inputs: ShipInputs) -> FitRecord:
    """The build that ships, beside what it is compared with, and what is true of it."""
    target, model, stats = job.target, inputs.model.value, inputs.stats.value
    bench = _workbench(job, run, clock, model, inputs.probe)
    judge = partial(_verify, job, clock, inputs.split, inputs.probe)
    shipment, verification = _shipment(job, run, clock, stages, inputs, bench, judge)
    with clock.stage("check"):
        subject = CheckInput(model, target.table, target.facts, shipment.plan, stats)
        findings = check(subject, rules_for(target))
    with clock.stage("baselines"):
        comparison = _compared(job, run, bench, model, shipment.compiled)
    build = Build(shipment.plan, shipment.compiled, run.path)
    if verification is None:  # the build is that of an earlier run
        verification = judge(build)
        if verification.failing is not None and shipment.located:
            verification = with_place(verification, shipment.located)
    with clock.stage("device"):
        data = job.data if job.evaluation is None else job.evaluation.data
        built = _build_inputs(job, inputs.split, inputs.probe, build)
        device = leave_device_folder(run.path, built, target.backend, data, job.options.thresholds)
    return FitRecord(
        stats, shipment.plan, shipment.compiled, verification, findings, shipment.decisions, comparison, device
    )


def _shipment(
    job: Job, run: RunDir, clock: Clock, stages: Stages, inputs: ShipInputs, bench: Workbench, judge: Verify
) -> tuple[Shipment, Verification | None]:
    """What ships, and what is true of it where it was built just now."""
    seen: list[Verification] = []

    def make(variant: Variant, target: Target, bench: Workbench, judge: Verify) -> Shipment:
        if variant.plan is not None:
            validate_plan(variant.plan, variant.model, target.table)
        trial = run_trials(target.knobs, bench, variant, judge, clock.stage)
        seen.append(trial.verification)
        build = bench.ship(trial.build, run.path)
        return Shipment(build.plan, build.compiled, trial.decisions, trial.located)

    shutil.rmtree(run.stages / TRIALS, ignore_errors=True)  # those of a run that was interrupted
    shipment = stages.make(
        "build",
        make,
        shipment_files(run, inputs.model.value),
        final=lambda record: record.compiled.finished,
        variant=_variant(job, inputs),
        target=KeyedValue(job.target, job.target_key),
        bench=KeyedValue(bench, keyed([inputs.probe.available, bench.wishes]).key),
        judge=_judge_key(job, judge),
    ).value
    shutil.rmtree(run.stages / TRIALS, ignore_errors=True)
    return shipment, (seen[0] if seen else None)


def _variant(job: Job, inputs: ShipInputs) -> KeyedValue[Variant]:
    """What is tried first; scales that came with a model are of this run only."""
    variant = Variant(inputs.model.value, inputs.stats.value, inputs.request, job.imported, job.plan)
    keys = [inputs.model.key, inputs.stats.key, repr(inputs.request), job.plan_key]
    return KeyedValue(variant, keyed(keys).key) if job.imported is None else unknown(variant)


def _judge_key(job: Job, judge: Verify) -> KeyedValue[Verify]:
    """By what a build is judged, which decides about workarounds, and by what candidates are scored: held-out data and
    metric, thresholds, how many samples. Where it cannot be told whether data is the same, it is not."""
    if job.evaluation is not None and not job.evaluation.key:
        return unknown(judge)
    held_out = None if job.evaluation is None else job.evaluation.key
    return KeyedValue(judge, keyed([held_out, repr(job.options.thresholds), job.options.emulate]).key)


def _workbench(job: Job, run: RunDir, clock: Clock, model: ir.Model, probe: Probe) -> Workbench:
    return Workbench(
        job.target.table,
        job.target.backend,
        job.data.samples,
        run.stages / TRIALS,
        available=probe.available,
        wishes={"operands": job.options.operand_bits, "precision": job.options.precision},
        score=_score(job, model),
        progress=clock.progress,
    )


def _build_inputs(job: Job, split: SplitModel, probe: Probe, build: Build) -> BuildInputs:
    return BuildInputs(job.path, split.head, build.plan, build.compiled, probe, split.tail)


def _verify(job: Job, clock: Clock, split: SplitModel, probe: Probe, build: Build) -> Verification:
    with clock.stage("verify"):
        inputs = _build_inputs(job, split, probe, build)
        return verify(inputs, job.target.backend, job.data, job.evaluation, job.options.thresholds, clock.progress)


def _compared(job: Job, run: RunDir, bench: Workbench, model: ir.Model, fitted: CompileResult) -> BaselineComparison:
    options = job.options
    case = BaselineCase(model, job.path, options.precision, bench.samples(BASELINE_SAMPLES), options.shape)
    return compare(bench, fitted, options.baselines, case, run.path / COMPILED)


def _is_scored(job: Job) -> bool:
    """Whether several precisions are scored by the caller's metric: not where a tail makes the outputs."""
    metric = None if job.evaluation is None else job.evaluation.metric
    return metric is not None and not job.target.table.unsupported and job.options.precision in job.target.table.choices


def _score(job: Job, model: ir.Model) -> Score | None:
    """The caller's metric on some of the held-out samples, for every candidate alike."""
    held_out = job.evaluation
    if held_out is None or held_out.metric is None or not _is_scored(job):
        return None
    inputs = frozenset(str(value.name) for value in model.graph.inputs)
    metric, name, data = held_out.metric, held_out.metric_name, held_out.data

    def samples() -> Iterator[Sample]:
        return itertools.islice(data.samples(), SCORED_SAMPLES)

    def figures(outputs: Iterator[Sample]) -> Mapping[str, float]:
        return measure(
            metric, name, lambda some: (one for _, one in zip(some, outputs, strict=True)), samples(), inputs
        )

    return Score(samples, figures)
