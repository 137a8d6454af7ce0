"""The verdict ``repaired``: whether a repaired model is worse than the model as given, its own Q/DQ run literally."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from dovetail.backend import Runner, Sample
from dovetail.errors import BackendError
from dovetail.finding import Status, Thresholds, Verdict, passes_when
from dovetail.model.class_scores import class_outputs
from dovetail.model.ranked import ranked_outputs
from dovetail.qdq.quantized_io import RunSamples
from dovetail.verify.compare import Agreement, compare_runs, side_by_side
from dovetail.verify.verdicts import bounded_db

# Below this the model as given has next to nothing in common with the float model.
_UNRELATED_DB = 3.0
NAME = "repaired"
# How the figures of an output are named in the verdict's numbers.
REPAIRED, AS_GIVEN, TARGET, AS_GIVEN_THERE = "repaired: ", "as given: ", "target: ", "as given, samples of the target: "
_MEAN, _DEVIATION = "mean drop per sample: ", "deviation of the drop: "
# Fewer samples have no standard error to speak of.
CONFIDENT_SAMPLES = 8
# The model as given with only its types changed, as a stream of outputs; or why it cannot be run.
TypesOnly = Callable[[], RunSamples | str]


@dataclass(frozen=True, slots=True, eq=False)
class RepairReferences:
    """The outputs that a repaired model is judged by, of the same samples.

    ``graph``: the float graph that the repaired model was made from. ``reference``: outputs of the float model that the
    caller gave, or None. ``source``: which samples these are, as a text.
    """

    graph: ir.Graph
    samples: list[Sample]
    source: str
    as_given: list[Sample]
    reference: list[Sample] | None

    def first(self, count: int) -> RepairReferences:
        """The same for the first samples only."""
        reference = None if self.reference is None else self.reference[:count]
        return replace(self, samples=self.samples[:count], as_given=self.as_given[:count], reference=reference)


def not_checked(reason: str, thresholds: Thresholds) -> Verdict:
    """The verdict where nothing could be compared."""
    return Verdict(Status.NOT_CHECKED, reason, passes_when(NAME, thresholds))


def judge_repair(
    references: RepairReferences, repaired: RunSamples, types_only: TypesOnly, thresholds: Thresholds
) -> Verdict:
    """Run the repaired model on the samples and compare it with the model as given."""
    outputs = list(repaired(references.samples))
    if references.reference is not None:
        return _against_float(references, references.reference, outputs, types_only, thresholds)
    return _against_as_given(references, outputs, types_only, thresholds)


@dataclass(frozen=True, slots=True)
class Margin:
    """How clearly a trial must pass, because other samples than its own are judged in the end.

    ``share``: of the drop that the verdict allows, what the trial may lose. ``errors``: by how many standard errors the
    mean drop of a sample must be below what the verdict allows; 0 if the mean is not judged.
    """

    share: float
    errors: float = 0.0


def with_confidence(verdict: Verdict, samples: int, limit_db: float, errors: float) -> Verdict:
    """The verdict, which fails too if samples may lose more than the limit on average: mean plus standard errors.

    The pooled figure is that of the few samples with the most noise; on other samples it can be another one.
    """
    if verdict.status is not Status.PASS or samples < CONFIDENT_SAMPLES or not errors:
        return verdict
    for name in (name for name in verdict.numbers if name.startswith(_MEAN)):
        output = name.removeprefix(_MEAN)
        mean, error = verdict.numbers[name], verdict.numbers[_DEVIATION + output] / math.sqrt(samples)
        if mean + errors * error > limit_db:
            reason = f"{output!r}: a sample loses {mean:.1f} dB on average, with a standard error of {error:.1f} dB"
            return replace(verdict, status=Status.FAIL, reason=reason)
    return verdict


def judge_on_target(
    simulated: Verdict,
    references: RepairReferences,
    target: RunSamples,
    runner: Runner,
    types_only: TypesOnly,
    thresholds: Thresholds,
) -> Verdict:
    """The verdict of the simulation, unless the outputs of the target itself are worse than the model as given.

    An emulator runs few samples; before a failure is accepted it runs more of them.
    """
    counts = [len(references.samples)] if runner.samples is None else [runner.samples, runner.retry_samples or 0]
    verdict = simulated
    for count in sorted({min(count, len(references.samples)) for count in counts if count}):
        try:
            verdict = judge_repair(references.first(count), target, types_only, thresholds)
        except BackendError as error:
            return replace(simulated, evidence=f"{simulated.evidence}; the target could not be run: {error}")
        if verdict.status is Status.PASS:
            break
    return with_target(simulated, verdict, count)


def with_target(simulated: Verdict, on_target: Verdict, count: int) -> Verdict:
    """The verdict of the simulation with the figures of the target on the first samples; it fails if that one does."""
    numbers = {**simulated.numbers, **_of_target(on_target.numbers)}
    evidence = f"{simulated.evidence}; the target on {count} of them"
    if on_target.status is Status.FAIL:
        return replace(on_target, reason=f"on the target: {on_target.reason}", evidence=evidence, numbers=numbers)
    return replace(simulated, evidence=evidence, numbers=numbers)


def _of_target(numbers: Mapping[str, float]) -> dict[str, float]:
    """The figures of the target, and of the model as given on the same samples."""
    names = {REPAIRED: TARGET, AS_GIVEN: AS_GIVEN_THERE}
    return {
        new + name.removeprefix(old): value
        for name, value in numbers.items()
        for old, new in names.items()
        if name.startswith(old)
    }


def _against_float(
    references: RepairReferences,
    expected: list[Sample],
    outputs: list[Sample],
    types_only: TypesOnly,
    thresholds: Thresholds,
) -> Verdict:
    ranked, classes = ranked_outputs(references.graph), class_outputs(references.graph)
    as_given, repaired = (compare_runs(expected, run, ranked, classes) for run in (references.as_given, outputs))
    before, after = _figures(as_given, repaired)
    numbers = {AS_GIVEN + name: value for name, value in before.items()}
    numbers |= {REPAIRED + name: value for name, value in after.items()}
    numbers |= _drops_per_sample(as_given, repaired)
    conditions = passes_when(NAME, thresholds)
    evidence = _evidence(references, "float, as given and repaired")
    if before and all(value < _UNRELATED_DB for value in before.values()):
        reason = (
            f"the model as given is at {max(before.values()):.1f} dB or less against the float model: it was quantized "
            "from another model, or its quantization parameters are wrong"
        )
        return Verdict(Status.NOT_CHECKED, reason, conditions, evidence, numbers)
    fail = Verdict(Status.FAIL, "", conditions, evidence, numbers)
    if as_given.top1 and 1 / len(outputs) > thresholds.repaired_share:
        fail = replace(fail, evidence=f"{evidence}; one sample is {1 / len(outputs):.1%} of them, and may differ")
    for name in sorted(as_given.top1):
        allowed = max(thresholds.repaired_share, 1 / len(outputs))
        if repaired.top1[name] < as_given.top1[name] - allowed - 1e-9:
            reason = (
                f"the top class of {name!r} is that of the float model on {repaired.top1[name]:.1%} of the samples, in "
                f"the model as given on {as_given.top1[name]:.1%}"
            )
            return replace(fail, reason=reason)
    if (mismatch := _integer_mismatch(as_given, repaired, thresholds)) is not None:
        return replace(fail, reason=mismatch)
    if not before:
        return replace(fail, status=Status.PASS, reason="the integer outputs are as in the model as given")
    worst = max(before, key=lambda name: before[name] - after[name])
    figures = f"{worst!r}: repaired {after[worst]:.1f} dB, as given {before[worst]:.1f} dB against float"
    if before[worst] - after[worst] <= thresholds.repaired_drop_db:
        return replace(fail, status=Status.PASS, reason=f"not worse than the model as given; {figures}")
    if not isinstance(run := types_only(), str):
        types, _ = _figures(compare_runs(expected, run(references.samples), ranked), repaired)
        figures += f"; the change of types alone gives {types[worst]:.1f} dB"
        numbers = {**numbers, f"types alone: {worst}": types[worst]}
    return replace(fail, reason=f"worse than the model as given; {figures}", numbers=numbers)


def _against_as_given(
    references: RepairReferences, outputs: list[Sample], types_only: TypesOnly, thresholds: Thresholds
) -> Verdict:
    ranked, expected = ranked_outputs(references.graph), references.as_given
    repaired = compare_runs(expected, outputs, ranked)
    run = types_only()
    with_types = compare_runs(expected, expected if isinstance(run, str) else run(references.samples), ranked)
    types, after = _figures(with_types, repaired)
    numbers = {REPAIRED + name: value for name, value in after.items()}
    if isinstance(run, str):
        types = dict.fromkeys(after, math.inf)
        cost = f"the cost of the types alone is not known: {run}"
    else:
        numbers |= {f"types alone: {name}": value for name, value in types.items()}
        cost = "the change of types alone gives {:.1f} dB"
    conditions, evidence = passes_when(NAME, thresholds), _evidence(references, "as given and repaired")
    fail = Verdict(Status.FAIL, "", conditions, evidence, numbers)
    if (mismatch := _integer_mismatch(with_types, repaired, thresholds)) is not None:
        return replace(fail, reason=mismatch)
    if not after:
        return replace(fail, status=Status.PASS, reason="the integer outputs are as in the model as given")
    limits = {name: min(thresholds.repaired_db, types[name] - thresholds.repaired_drop_db) for name in after}
    worst = max(after, key=lambda name: limits[name] - after[name])
    figures = f"{worst!r}: {after[worst]:.1f} dB against the model as given; {cost.format(types[worst])}"
    if after[worst] < limits[worst]:
        reason = f"differs from the model as given; {figures}; add --float MODEL to compare with the float model"
        return replace(fail, reason=reason)
    return replace(fail, status=Status.PASS, reason=f"computes what the model as given computes; {figures}")


def _evidence(references: RepairReferences, models: str) -> str:
    return f"{len(references.samples)} {references.source}: {models} in ONNX Runtime, Q and DQ literally"


def _drops_per_sample(as_given: Agreement, repaired: Agreement) -> dict[str, float]:
    """By how many dB single samples are worse than in the model as given: mean and standard deviation per output."""
    numbers: dict[str, float] = {}
    for name, before in as_given.per_sample.items():
        drops = [
            bounded_db(b) - bounded_db(a)
            for b, a in zip(before, repaired.per_sample[name], strict=True)
            if not math.isnan(a) and not math.isnan(b)
        ]
        if len(drops) > 1:
            numbers[_MEAN + name] = statistics.fmean(drops)
            numbers[_DEVIATION + name] = statistics.stdev(drops)
    return numbers


def _figures(first: Agreement, second: Agreement) -> tuple[dict[str, float], dict[str, float]]:
    """Finite figures of the float outputs; NaN, which is never in the reference alone, counts as the lowest."""
    lowest = -bounded_db(math.inf)
    before, after = (
        {name: lowest if math.isnan(value) else bounded_db(value) for name, value in figures.items()}
        for figures in side_by_side(first, second)
    )
    return before, after


def _integer_mismatch(as_given: Agreement, repaired: Agreement, thresholds: Thresholds) -> str | None:
    for name in sorted(repaired.integer - repaired.rows.keys()):
        before, after = as_given.outputs[name], repaired.outputs[name]
        allowed = before.count - before.equal + max(1.0, thresholds.repaired_share * after.count)
        if after.count - after.equal > allowed:
            return (
                f"{after.count - after.equal} of {after.count} integers of {name!r} differ, in the model as given "
                f"{before.count - before.equal}"
            )
    return None
