"""The verdicts of a run: one function each, so that what "pass" means can be read in one place."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from dovetail.backend import CompileResult, Outcome, Probe, ReadBack
from dovetail.finding import Status, Thresholds, Verdict, passes_when
from dovetail.numerics.metrics import Comparison
from dovetail.verify.compare import Agreement

# What an identical pair of tensors is reported as: beyond anything float32 can show, and a number in JSON.
MAX_SQNR_DB = 200.0

# The share of the integers of an output that may differ from float beyond twice what the simulation's do.
_INTEGER_SLACK = 0.05


def bounded_db(value: float) -> float:
    """A figure in dB that JSON can hold; NaN stays NaN."""
    return value if math.isnan(value) else max(-MAX_SQNR_DB, min(MAX_SQNR_DB, value))


def target_db(value: float, simulation: float) -> float:
    """A target's figure in dB; NaN where the simulation has none of it is as bad as a figure can be."""
    return -MAX_SQNR_DB if math.isnan(value) and not math.isnan(simulation) else bounded_db(value)


def normalized(agreement: Agreement, thresholds: Thresholds, source: str) -> Verdict:
    """Whether the rewritten float graph still is the caller's model."""
    numbers = {name: bounded_db(one.sqnr_db) for name, one in agreement.outputs.items()}
    bad = [name for name, one in agreement.outputs.items() if not _equal(one, name in agreement.integer, thresholds)]
    conditions = passes_when("normalized", thresholds)
    evidence = f"{agreement.samples} samples of {source}, both graphs in ONNX Runtime"
    if not agreement.outputs or not agreement.samples:
        return Verdict(Status.NOT_CHECKED, "there was nothing to compare", conditions, evidence)
    if bad:
        reason = f"output {bad[0]!r} differs from the original model: {numbers[bad[0]]:.1f} dB"
        return Verdict(Status.FAIL, reason, conditions, evidence, numbers)
    worst = min((value for value in numbers.values() if not math.isnan(value)), default=MAX_SQNR_DB)
    reason = f"the graph that is quantized equals the original: {worst:.0f} dB or more on every output"
    return Verdict(Status.PASS, reason, conditions, evidence, numbers)


def _equal(one: Comparison, integer: bool, thresholds: Thresholds) -> bool:
    if integer or one.count == 0:
        return one.equal == one.count
    return one.sqnr_db >= thresholds.normalized_db


def compiled(result: CompileResult, probe: Probe, thresholds: Thresholds) -> Verdict:
    """Whether the target's compiler took the whole graph."""
    conditions = passes_when("compiled", thresholds)
    if not probe.available:
        return Verdict(Status.NOT_CHECKED, probe.missing, conditions)
    versions = ", ".join(f"{name} {version}" for name, version in probe.versions.items())
    if result.error:
        status = Status.FAIL if result.finished else Status.NOT_CHECKED
        return Verdict(status, result.error, conditions, versions)
    return Verdict(Status.PASS, "the compiler took the whole graph", conditions, versions)


def fidelity(read_back: ReadBack | None, thresholds: Thresholds, why_not: str = "") -> Verdict:
    """Whether what was compiled stores every planned tensor as planned."""
    conditions = passes_when("fidelity", thresholds)
    if read_back is None:
        return Verdict(Status.NOT_CHECKED, why_not, conditions)
    if read_back.unparsed:
        reason = f"what was compiled could not be read: {read_back.unparsed}"
        return Verdict(Status.NOT_CHECKED, reason, conditions, read_back.evidence)
    if not read_back.tensors:
        reason = "nothing was read back: the target does not say how it stores this plan"
        return Verdict(Status.NOT_CHECKED, reason, conditions, read_back.evidence)
    counts = Counter(one.outcome for one in read_back.tensors)
    numbers = {str(outcome): float(counts[outcome]) for outcome in Outcome}
    changed = [one for one in read_back.tensors if one.outcome is Outcome.CHANGED]
    missing = [one for one in read_back.tensors if one.outcome is Outcome.NOT_FOUND]
    if changed:
        first = changed[0]
        reason = f"{len(changed)} planned storages were changed; the first is {first.tensor!r}: {first.detail}"
        return Verdict(Status.FAIL, reason, conditions, read_back.evidence, numbers)
    if missing:
        first = missing[0]
        reason = f"{len(missing)} planned storages were not found; the first is {first.tensor!r}: {first.detail}"
        return Verdict(Status.NOT_CHECKED, reason, conditions, read_back.evidence, numbers)
    reason = f"{counts[Outcome.MATCHED]} planned storages matched, {counts[Outcome.ABSORBED]} absorbed, none changed"
    return Verdict(Status.PASS, reason, conditions, read_back.evidence, numbers)


def cannot_run(error: str, thresholds: Thresholds, *, finished: bool = True) -> Verdict:
    """A target that compiled a graph and then does not run it, or was not ``finished`` when it was stopped."""
    status, said = (Status.FAIL, "does not run") if finished else (Status.NOT_CHECKED, "was not run to the end")
    return Verdict(status, f"the compiled graph {said}: {error}", passes_when("numerics", thresholds))


def numerics(
    simulation: Mapping[str, float],
    target: Mapping[str, float] | None,
    thresholds: Thresholds,
    why_not: str = "",
    float_db: float | None = None,
) -> Verdict:
    """Whether the target's numbers are as good as the simulation's, per float output in dB against float.

    ``float_db``: no more is asked of a target whose floats are no better than that.
    """
    conditions = passes_when("numerics", thresholds)
    if target is None:
        return Verdict(Status.NOT_CHECKED, why_not, conditions)
    checked = {name: value for name, value in target.items() if not math.isnan(simulation[name])}
    if not checked:
        return Verdict(Status.NOT_CHECKED, "no float output could be compared", conditions)
    broken = [name for name, value in checked.items() if math.isnan(value)]
    if broken:
        return Verdict(
            Status.FAIL, f"the target's output {broken[0]!r} holds NaN, the simulation's does not", conditions
        )
    ceiling = min(thresholds.numerics_ceiling_db, math.inf if float_db is None else float_db)
    drops = {name: min(bounded_db(simulation[name]), ceiling) - bounded_db(value) for name, value in checked.items()}
    worst = max(drops, key=drops.__getitem__)
    said = f"{worst!r}: target {target[worst]:.1f} dB, simulation {simulation[worst]:.1f} dB against float"
    if float_db is not None and bounded_db(simulation[worst]) > float_db:
        said += f", of which {float_db:g} dB are asked of float16"
    status = Status.PASS if drops[worst] <= thresholds.numerics_drop_db else Status.FAIL
    reason = f"the target runs as simulated; {said}" if status is Status.PASS else f"target and simulation part; {said}"
    return Verdict(status, reason, conditions, "outputs of the compiled graph", drops)


def with_overflow(verdict: Verdict, simulation: Agreement) -> Verdict:
    """A verdict on numbers, failed where the simulation holds NaN or infinity and float does not.

    What is simulated is what ships, so this needs no target that runs: float16 ends at 65504.
    """
    for name, one in simulation.outputs.items():
        if name not in simulation.integer and math.isfinite(one.signal) and not math.isfinite(one.other):
            reason = f"the simulation's output {name!r} holds NaN or infinity, float's does not"
            evidence = f"the emitted graph in ONNX Runtime on {simulation.samples} samples"
            return replace(verdict, status=Status.FAIL, reason=reason, evidence=evidence, numbers={})
    return verdict


def with_selections(verdict: Verdict, simulation: Agreement, target: Agreement) -> Verdict:
    """A verdict on numbers, together with one on the rows that a TopK selected otherwise than in float.

    Twice as many of them is what twice the noise does, and the last place can always go to another.
    """
    said = []
    for name, rows in target.rows.items():
        simulated = simulation.rows[name].replaced
        if not rows.replaced and not simulated:
            continue
        said.append(f"{rows.replaced} of {rows.total} rows of {name!r} are other selections, {simulated} in simulation")
        if rows.replaced > 2 * simulated + target.samples and verdict.status is Status.PASS:
            return replace(verdict, status=Status.FAIL, reason=f"target and simulation select other rows; {said[-1]}")
    return replace(verdict, reason="; ".join([verdict.reason, *said[:1]]))


def with_integers(verdict: Verdict, simulation: Agreement, target: Agreement) -> Verdict:
    """A verdict on numbers, together with one on outputs that are integers: classes, indices, flags.

    Noise moves some of them, the target's as much as the simulation's; what is computed wrongly moves most.
    """
    checked = sorted(simulation.integer - target.rows.keys())
    for name in checked:
        one = target.outputs[name]
        missed, simulated = one.count - one.equal, simulation.outputs[name].count - simulation.outputs[name].equal
        if missed > 2 * simulated + _INTEGER_SLACK * one.count and verdict.status is not Status.FAIL:
            said = f"{missed} of {one.count} integers of {name!r} are not those of float, {simulated} in simulation"
            return replace(verdict, status=Status.FAIL, reason=f"target and simulation part; {said}")
    if checked and verdict.status is Status.NOT_CHECKED:
        reason = (
            f"the target runs as simulated; integers of {', '.join(map(repr, checked))} are those of the simulation"
        )
        return replace(verdict, status=Status.PASS, reason=reason)
    return verdict
