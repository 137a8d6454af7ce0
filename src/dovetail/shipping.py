"""Decide, build, ship, verify: from the float graph and its statistics to the verified build that ships."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir as ir

from dovetail.backend import BaselineCase, CompileResult, Probe, Sample
from dovetail.catalog import rules_for
from dovetail.clock import Clock
from dovetail.device.pack import write_device_folder
from dovetail.finding import Finding, Thresholds, Verdict
from dovetail.job import Job
from dovetail.model.split import SplitModel
from dovetail.plan.constraints import build_problem
from dovetail.plan.mixture import float_share
from dovetail.plan.request import Request
from dovetail.plan.validate import validate_plan
from dovetail.report.assemble import FitRecord
from dovetail.rules.check import check
from dovetail.rules.check_input import CheckInput
from dovetail.rundir import RunDir
from dovetail.stage_files import Shipment, shipment_files
from dovetail.stages import KeyedValue, Stages, keyed, unknown
from dovetail.stats import Stats
from dovetail.storage import Plan
from dovetail.target import Target
from dovetail.trials import mixed_decisions
from dovetail.trials.baselines import BaselineComparison, compare
from dovetail.trials.cached_measurements import CachedMeasurements
from dovetail.trials.goal import Goal
from dovetail.trials.knobs.rounding import ROUNDING
from dovetail.trials.run_trials import Verify, run_trials, with_location
from dovetail.trials.variant import Variant
from dovetail.trials.workbench import COMPILED, Build, MetricEvaluation, Workbench
from dovetail.verify.low_accuracy import low_accuracy
from dovetail.verify.metric import lower_is_better, measure
from dovetail.verify.verdicts import budget
from dovetail.verify.verify import BuildInputs, Verification, verify

# The folder in ``stages/`` in which variants are built.
TRIALS = "trials"
# The folder in ``stages/`` with what an interrupted search has measured.
KEPT = "kept"
# How many samples a baseline is calibrated on; few suffice, because only its speed is reported.
BASELINE_SAMPLES = 8
# How many held-out samples each candidate precision is scored on.
SCORED_SAMPLES = 500


@dataclass(frozen=True, slots=True, eq=False)
class ShipInputs:
    """The inputs of ``ship``: the float graph, its statistics, the request for its plan, the split original, and
    whether the target's tools are installed."""

    model: KeyedValue[ir.Model]
    stats: KeyedValue[Stats]
    request: Request
    split: SplitModel
    probe: Probe


def ship(job: Job, run: RunDir, clock: Clock, stages: Stages, inputs: ShipInputs) -> FitRecord:
    """Choose and make the build that ships, verify it, and compare it with baselines."""
    target, model, stats = job.target, inputs.model.value, inputs.stats.value
    kept = run.stages / KEPT / stages.key("search", variant=_variant(job, inputs), target=keyed(job.target_key))[:32]
    bench = _workbench(job, run, clock, inputs, CachedMeasurements(kept))
    judge = partial(_verify, job, clock, inputs.split, inputs.probe)
    shipment, verification = _shipment(job, run, clock, stages, inputs, bench, judge)
    with clock.stage("check"):
        check_input = CheckInput(model, target.table, target.facts, shipment.plan, stats)
        findings = check(check_input, rules_for(target))
    build = Build(shipment.plan, shipment.compiled, run.path)
    with clock.stage("baselines"):
        comparison = _compared(job, run, bench, model, build)
    if verification is None:  # the build was loaded from an earlier run
        verification = judge(build)
        if verification.failing is not None and shipment.located:
            verification = with_location(verification, shipment.located)
    if job.has_budget:
        verdict = _budget(job, model, shipment.plan, comparison)
        verification = replace(verification, verdicts={**verification.verdicts, "budget": verdict})
    with clock.stage("device"):
        data = job.data if job.evaluation is None else job.evaluation.data
        built = _build_inputs(job, inputs.split, inputs.probe, build)
        device = write_device_folder(run.path, built, target.backend, data, job.options.thresholds)
    findings = (*findings, *_low_accuracy(job, verification, model, shipment.plan))
    return FitRecord(
        stats, shipment.plan, shipment.compiled, verification, findings, shipment.decisions, comparison, device
    )


def _budget(job: Job, model: ir.Model, plan: Plan, comparison: BaselineComparison) -> Verdict:
    """The verdict on latency and MACs in float."""
    float_macs = float_share(build_problem(model, job.target.table), plan)
    return budget(*comparison.first_ratio(), float_macs, job.options.thresholds)


def _low_accuracy(job: Job, verification: Verification, model: ir.Model, plan: Plan) -> tuple[Finding, ...]:
    """The finding about a low accuracy, with what to keep in which precision of the target."""
    table = job.target.table
    precision = table.precisions.get(plan.precision, job.request.precision)
    if verification.judgement is None:
        return ()
    can_search = any(knob.name == mixed_decisions.NAME for knob in job.target.knobs)
    searches = can_search and job.options.precision not in table.choices
    return low_accuracy(verification.judgement, verification.losses, model, table, precision, searches=searches)


def _shipment(
    job: Job, run: RunDir, clock: Clock, stages: Stages, inputs: ShipInputs, bench: Workbench, judge: Verify
) -> tuple[Shipment, Verification | None]:
    """Return what ships, and its verification if it was built in this run."""
    verifications: list[Verification] = []

    def make(variant: Variant, target: Target, bench: Workbench, judge: Verify) -> Shipment:
        if variant.plan is not None:
            validate_plan(variant.plan, variant.model, target.table)
        trial = run_trials((*target.knobs, ROUNDING), bench, variant, judge, clock.stage)
        verifications.append(trial.verification)
        build = bench.ship(trial.build, run.path)
        return Shipment(build.plan, build.compiled, trial.decisions, trial.located)

    shutil.rmtree(run.stages / TRIALS, ignore_errors=True)  # left by an interrupted run
    shipment = stages.make(
        "build",
        make,
        shipment_files(run, inputs.model.value),
        final=lambda record: record.compiled.finished,
        variant=_variant(job, inputs),
        target=KeyedValue(job.target, job.target_key),
        bench=KeyedValue(bench, keyed([inputs.probe.available, bench.knob_options, job.limits_key]).key),
        judge=_judge_key(job, judge),
    ).value
    for folder in (TRIALS, KEPT):
        shutil.rmtree(run.stages / folder, ignore_errors=True)
    return shipment, (verifications[0] if verifications else None)


def _variant(job: Job, inputs: ShipInputs) -> KeyedValue[Variant]:
    """Return the first variant; with scales that came with a model it is never loaded from an earlier run."""
    variant = Variant(inputs.model.value, inputs.stats.value, inputs.request, job.imported, job.plan)
    keys = [inputs.model.key, inputs.stats.key, repr(inputs.request), job.plan_key]
    return KeyedValue(variant, keyed(keys).key) if job.imported is None else unknown(variant)


def _judge_key(job: Job, judge: Verify) -> KeyedValue[Verify]:
    """Key of what a build is judged by: held-out data and metric, thresholds, number of emulated samples.

    They decide about workarounds and candidates. Data that cannot be identified is never the same.
    """
    if job.evaluation is not None and not job.evaluation.key:
        return unknown(judge)
    held_out = None if job.evaluation is None else job.evaluation.key
    return KeyedValue(judge, keyed([held_out, repr(job.options.thresholds), repr(_goal(job)), job.options.emulate]).key)


def _workbench(job: Job, run: RunDir, clock: Clock, inputs: ShipInputs, measurements: CachedMeasurements) -> Workbench:
    return Workbench(
        job.target.table,
        job.target.backend,
        job.data.samples,
        run.stages / TRIALS,
        available=inputs.probe.available,
        knob_options={
            "operands": str(job.options.operand_bits),
            "precision": job.options.precision,
            "rounding": job.options.rounding,
        },
        metric=_metric_evaluation(job, inputs),
        goal=_goal(job),
        baseline=partial(_baseline, job, run, inputs),
        tail=inputs.split.tail,
        measurements=measurements,
        progress=clock.progress,
    )


def _build_inputs(job: Job, split: SplitModel, probe: Probe, build: Build) -> BuildInputs:
    return BuildInputs(job.reference, split.head, build.plan, build.compiled, probe, split.tail)


def _verify(job: Job, clock: Clock, split: SplitModel, probe: Probe, build: Build) -> Verification:
    with clock.stage("verify"):
        inputs = _build_inputs(job, split, probe, build)
        return verify(inputs, job.target.backend, job.data, job.evaluation, job.options.thresholds, clock.progress)


def _compared(job: Job, run: RunDir, bench: Workbench, model: ir.Model, build: Build) -> BaselineComparison:
    options = job.options
    case = BaselineCase(model, job.reference, options.precision, bench.samples(BASELINE_SAMPLES), options.shape)
    return compare(bench, build, options.baselines, case, run.path / COMPILED)


def _goal(job: Job) -> Goal:
    """What the caller asks of a mixed precision."""
    limits, defaults = job.options.thresholds, Thresholds()
    is_sqnr_set = job.options.min_sqnr is not None or limits.min_sqnr_db != defaults.min_sqnr_db
    is_drop_set = job.options.max_drop is not None or limits.max_drop != defaults.max_drop
    return Goal(
        min_sqnr_db=limits.min_sqnr_db if is_sqnr_set else None,
        max_drop=limits.max_drop if is_drop_set else None,
        max_drop_of=limits.max_drop_of,
        max_latency=limits.max_latency,
        max_float=limits.max_float,
    )


def _baseline(job: Job, run: RunDir, inputs: ShipInputs) -> CompileResult | None:
    """Build the first baseline, if there is one."""
    baselines = job.target.backend.baselines
    if not baselines:
        return None
    samples = list(itertools.islice(job.data.samples(), BASELINE_SAMPLES))
    case = BaselineCase(inputs.model.value, job.reference, job.options.precision, samples, job.options.shape)
    folder = run.stages / TRIALS / "baseline"
    folder.mkdir(parents=True, exist_ok=True)
    return baselines[0].build(case, folder)


def _metric_evaluation(job: Job, ship_inputs: ShipInputs) -> MetricEvaluation | None:
    """Return the caller's metric on the first held-out samples, the same for every candidate precision."""
    held_out = job.evaluation
    is_chosen = job.options.precision in job.target.table.choices
    if held_out is None or held_out.metric is None or not is_chosen:
        return None
    inputs = frozenset(str(value.name) for value in ship_inputs.model.value.graph.inputs)
    metric, name, data = held_out.metric, held_out.metric_name, held_out.data

    def samples() -> Iterator[Sample]:
        return itertools.islice(data.samples(), SCORED_SAMPLES)

    def values(outputs: Iterator[Sample]) -> Mapping[str, float]:
        def stream(inputs_of_model: Iterable[Sample]) -> Iterator[Sample]:
            return (output for _, output in zip(inputs_of_model, outputs, strict=True))

        return measure(metric, name, stream, samples(), inputs)

    return MetricEvaluation(samples, values, partial(lower_is_better, metric, name), held_out.key)
