"""The verdict ``accuracy``: whether the quantized model is still as good as the float model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.finding import Status, Thresholds, Verdict, passes_when
from dovetail.stats import DataInfo
from dovetail.verify.compare import Agreement
from dovetail.verify.metric import Accuracy
from dovetail.verify.verdicts import lowest_if_nan_db

# Below these an accuracy that passes gets a warning: the noise is a tenth of the signal, one top class in twenty
# differs.
WARNING_DB = 20.0
WARNING_TOP1 = 0.95


@dataclass(frozen=True, slots=True)
class Measured:
    """What the verdict is derived from; ``target`` and ``emulated`` are None if the target did not run.

    ``data``: the samples of ``simulation``, of which the target may have run only the first. ``per_call``: how many of
    them one call of the model has. ``accuracy``: the metric on all held-out data; ``emulated``: on the samples that a
    slow target ran.
    """

    simulation: Agreement
    target: Agreement | None
    data: DataInfo
    per_call: int
    held_out: bool
    accuracy: Accuracy | None
    emulated: Accuracy | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict, and what is below a limit or below what deserves a warning, a sentence each."""

    verdict: Verdict
    problems: tuple[str, ...] = ()


def judge(measured: Measured, thresholds: Thresholds) -> Judgement:
    """Judge the outputs of the target if it ran, else those of the simulation; only float outputs."""
    conditions = passes_when("accuracy", thresholds)
    agreement, side = (measured.simulation, "simulation") if measured.target is None else (measured.target, "target")
    sqnr_db = output_db(agreement)
    drops, drop_limits, failures, on_metric = _metric(measured, thresholds)
    failures += below_limit(sqnr_db, thresholds)
    count = measured.data.samples if measured.target is None else agreement.samples * measured.per_call
    kind = "held-out" if measured.held_out else "calibration"
    on_outputs = f"SQNR on {_samples(count, kind)} of {measured.data.source}, {side}" if sqnr_db else ""
    evidence = "; ".join(filter(None, (on_metric, on_outputs)))
    numbers = {f"drop of {name}": value for name, value in drops.items() if math.isfinite(value)}
    numbers |= {f"sqnr_db of {name}": value for name, value in sqnr_db.items()}
    if not sqnr_db and not drop_limits:
        reason = "the model has no float output to compare, and no metric was given"
        return Judgement(Verdict(Status.NOT_CHECKED, reason, conditions, evidence))
    problems = (*failures, *warnings(sqnr_db, agreement.top1, thresholds))
    summary = _summary(measured, drops, sqnr_db)
    if measured.data.random:
        reason = f"the data is random, so the accuracy on real data is unknown; {summary}"
        return Judgement(Verdict(Status.NOT_CHECKED, reason, conditions, evidence, numbers), problems)
    status = Status.FAIL if failures else Status.PASS
    return Judgement(Verdict(status, "; ".join(failures) or summary, conditions, evidence, numbers), problems)


def output_db(agreement: Agreement) -> dict[str, float]:
    """SQNR of every float output, after a TopK on the rows that both sides selected.

    NaN or infinity where float has none counts as the lowest SQNR. An output in which float itself is not finite,
    or that is empty, cannot be judged.
    """
    sqnr_db = {}
    for name, comparison in agreement.outputs.items():
        rows = agreement.partnered.get(name)
        judged = comparison if rows is None or not rows.count else rows
        if name in agreement.integer or not judged.count or not math.isfinite(judged.signal):
            continue
        sqnr_db[name] = lowest_if_nan_db(judged.sqnr_db)
    return sqnr_db


def below_limit(sqnr_db: Mapping[str, float], thresholds: Thresholds) -> list[str]:
    """The outputs with which the verdict fails, a sentence each."""
    return [
        f"output {name!r} is at {value:.1f} dB against float, below the limit of {thresholds.min_sqnr_db:g} dB"
        for name, value in sqnr_db.items()
        if value < thresholds.min_sqnr_db
    ]


def warnings(sqnr_db: Mapping[str, float], top1: Mapping[str, float], thresholds: Thresholds) -> list[str]:
    """The outputs that deserve a warning, a sentence each."""
    low = [
        f"output {name!r} is at {value:.1f} dB against float"
        for name, value in sqnr_db.items()
        if thresholds.min_sqnr_db <= value < WARNING_DB
    ]
    other = [
        f"{name!r} has the same top class as float for only {100 * share:.1f} % of the samples"
        for name, share in top1.items()
        if share < WARNING_TOP1
    ]
    return [*low, *other]


def _metric(measured: Measured, thresholds: Thresholds) -> tuple[dict[str, float], dict[str, float], list[str], str]:
    """By value of the metric: the drop and its limit; the failures; and which metric was computed on what."""
    if measured.accuracy is None:
        return {}, {}, [], ""
    limits = {name: thresholds.drop_of(name) for name in measured.accuracy.figures["float"]}
    accuracy = measured.accuracy
    side = "target" if "target" in accuracy.figures else "simulation"
    emulated = measured.emulated
    if emulated is not None and _is_enough(emulated.data.samples, limits, accuracy.data.samples):
        accuracy, side = emulated, "target"
    drops, failures = {}, []
    for name, exact in accuracy.figures["float"].items():
        value = accuracy.figures[side][name]
        if math.isnan(exact):
            continue
        drop = value - exact if name in accuracy.lower_is_better else exact - value
        drops[name] = math.inf if math.isnan(value) else drop
        if drops[name] > limits[name]:
            change = f"{name} {_verb(accuracy, name)} from {exact:.4g} to {value:.4g}"
            failures.append(f"{change}: by {drops[name]:.4g}, more than the allowed {limits[name]:g}")
    on_metric = f"{accuracy.metric} on {_samples(accuracy.data.samples, 'held-out')} of {accuracy.data.source}, {side}"
    return drops, limits, failures, on_metric


def _verb(accuracy: Accuracy | None, name: str) -> str:
    """How a value of the metric gets worse."""
    return "rises" if accuracy is not None and name in accuracy.lower_is_better else "drops"


def _is_enough(samples: int, limits: Mapping[str, float], available: int) -> bool:
    """Whether the samples that a slow target ran tell a drop within the limits from chance.

    One of N samples changes a share by 1/N: with fewer than 1/limit samples a single one would decide.
    """
    return samples >= available or all(samples * limit >= 1 for limit in limits.values())


def _summary(measured: Measured, drops: Mapping[str, float], sqnr_db: Mapping[str, float]) -> str:
    parts = []
    if drops:
        worst = max(drops, key=drops.__getitem__)
        change = f"{worst} {_verb(measured.accuracy, worst)} by {drops[worst]:.4g}"
        parts.append(change if drops[worst] > 0 else "no value of the metric gets worse")
    if sqnr_db:
        lowest = min(sqnr_db, key=sqnr_db.__getitem__)
        parts.append(f"lowest output {lowest!r}: {sqnr_db[lowest]:.1f} dB against float")
    return "; ".join(parts)


def _samples(count: int, kind: str) -> str:
    return f"{count} {kind} sample{'s' * (count != 1)}"
