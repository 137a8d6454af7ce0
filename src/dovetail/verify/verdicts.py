"""The verdicts of a run, one function each; ``finding.PASSES_WHEN`` lists their conditions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from dovetail.backend import CompileResult, Outcome, Probe, ReadBack
from dovetail.finding import Status, Thresholds, Verdict, passes_when
from dovetail.numerics.metrics import Comparison
from dovetail.verify.compare import Agreement

# The SQNR reported for identical tensors: above what float32 can reach, and finite, because JSON has no infinity.
MAX_SQNR_DB = 200.0

# The share of an integer output that may differ from float, in addition to twice the simulation's.
_INTEGER_SLACK = 0.05


def bounded_db(value: float) -> float:
    """Clamp a value in dB to a finite range; NaN stays NaN."""
    return value if math.isnan(value) else max(-MAX_SQNR_DB, min(MAX_SQNR_DB, value))


def lowest_if_nan_db(value: float) -> float:
    """Clamp a value in dB to a finite range; NaN counts as the lowest value."""
    return -MAX_SQNR_DB if math.isnan(value) else bounded_db(value)


def target_db(value: float, simulation: float) -> float:
    """Clamp a target's value in dB; NaN that the simulation does not have counts as the lowest value."""
    return -MAX_SQNR_DB if math.isnan(value) and not math.isnan(simulation) else bounded_db(value)


def normalized(agreement: Agreement, thresholds: Thresholds, source: str) -> Verdict:
    """Whether the rewritten float graph computes the same as the caller's model."""
    figures = {name: bounded_db(comparison.sqnr_db) for name, comparison in agreement.outputs.items()}
    different = [
        name
        for name, comparison in agreement.outputs.items()
        if not _equal(comparison, name in agreement.integer, thresholds)
    ]
    conditions = passes_when("normalized", thresholds)
    evidence = f"{agreement.samples} samples from {source}, both graphs in ONNX Runtime"
    if not agreement.outputs or not agreement.samples:
        return Verdict(Status.NOT_CHECKED, "no output or no sample to compare", conditions, evidence)
    if different:
        reason = f"output {different[0]!r} differs from the original model: {figures[different[0]]:.1f} dB"
        return Verdict(Status.FAIL, reason, conditions, evidence, figures)
    worst = min((value for value in figures.values() if not math.isnan(value)), default=MAX_SQNR_DB)
    reason = f"outputs of the normalized float graph match the original model: SQNR >= {worst:.0f} dB on every output"
    return Verdict(Status.PASS, reason, conditions, evidence, figures)


def _equal(comparison: Comparison, integer: bool, thresholds: Thresholds) -> bool:
    if integer or comparison.count == 0:
        return comparison.equal == comparison.count
    return comparison.sqnr_db >= thresholds.normalized_db


def compiled(result: CompileResult, probe: Probe, thresholds: Thresholds) -> Verdict:
    """Whether the target's compiler accepted the whole graph."""
    conditions = passes_when("compiled", thresholds)
    if not probe.available:
        return Verdict(Status.NOT_CHECKED, probe.missing, conditions)
    versions = ", ".join(f"{name} {version}" for name, version in probe.versions.items())
    if result.error:
        status = Status.FAIL if result.finished else Status.NOT_CHECKED
        return Verdict(status, result.error, conditions, versions)
    return Verdict(Status.PASS, "the compiler accepted the whole graph", conditions, versions)


def budget(ratio: float | None, why_not: str, float_macs: float, thresholds: Thresholds) -> Verdict:
    """Whether latency, relative to the first baseline, and the fraction of MACs in float are within their limits."""
    conditions = passes_when("budget", thresholds)
    numbers = {"MACs in float": float_macs, **({} if ratio is None else {"latency": ratio})}
    exceeded, met = list[str](), list[str]()
    if thresholds.max_float is not None:
        text = f"{float_macs:.1%} of MACs in float, at most {thresholds.max_float:.1%} allowed"
        (exceeded if float_macs > thresholds.max_float else met).append(text)
    if thresholds.max_latency is not None:
        if ratio is None:
            return Verdict(Status.NOT_CHECKED, f"the latency is not known: {why_not}", conditions, numbers=numbers)
        text = f"latency {ratio:.2f} of the first baseline, at most {thresholds.max_latency:g} allowed"
        (exceeded if ratio > thresholds.max_latency else met).append(text)
    if exceeded:
        return Verdict(Status.FAIL, "; ".join(exceeded), conditions, numbers=numbers)
    return Verdict(Status.PASS, "; ".join(met), conditions, numbers=numbers)


def fidelity(read_back: ReadBack | None, thresholds: Thresholds, why_not: str = "") -> Verdict:
    """Whether the compiled graph stores every tensor as planned."""
    conditions = passes_when("fidelity", thresholds)
    if read_back is None:
        return Verdict(Status.NOT_CHECKED, why_not, conditions)
    if read_back.unparsed:
        reason = f"the compiled graph could not be parsed: {read_back.unparsed}"
        return Verdict(Status.NOT_CHECKED, reason, conditions, read_back.evidence)
    if not read_back.tensors:
        reason = "nothing was read back: the compiled graph does not show how tensors of this plan are stored"
        return Verdict(Status.NOT_CHECKED, reason, conditions, read_back.evidence)
    counts = Counter(tensor.outcome for tensor in read_back.tensors)
    numbers = {str(outcome): float(counts[outcome]) for outcome in Outcome}
    changed = [tensor for tensor in read_back.tensors if tensor.outcome is Outcome.CHANGED]
    missing = [tensor for tensor in read_back.tensors if tensor.outcome is Outcome.NOT_FOUND]
    if changed:
        first = changed[0]
        reason = f"{len(changed)} planned tensors or edges were changed; the first is {first.tensor!r}: {first.detail}"
        return Verdict(Status.FAIL, reason, conditions, read_back.evidence, numbers)
    if missing:
        first = missing[0]
        reason = (
            f"{len(missing)} planned tensors or edges were not found; the first is {first.tensor!r}: {first.detail}"
        )
        return Verdict(Status.NOT_CHECKED, reason, conditions, read_back.evidence, numbers)
    matched, absorbed = counts[Outcome.MATCHED], counts[Outcome.ABSORBED]
    reason = f"{matched + absorbed} planned tensors and edges: {matched} matched, {absorbed} absorbed, 0 changed"
    return Verdict(Status.PASS, reason, conditions, read_back.evidence, numbers)


def cannot_run(error: str, thresholds: Thresholds, *, finished: bool = True) -> Verdict:
    """The verdict on a compiled graph that fails to run, or that was stopped before it ``finished``."""
    status, outcome = (Status.FAIL, "failed to run") if finished else (Status.NOT_CHECKED, "did not run to the end")
    return Verdict(status, f"the compiled graph {outcome}: {error}", passes_when("numerics", thresholds))


def numerics(
    simulation: Mapping[str, float],
    target: Mapping[str, float] | None,
    thresholds: Thresholds,
    why_not: str = "",
    float_db: float | None = None,
) -> Verdict:
    """Whether the target is as accurate as the simulation, per float output in dB against float.

    ``float_db``: the SQNR that float tensors can reach on the target; no more than that is required.
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
            Status.FAIL, f"the target's output {broken[0]!r} contains NaN, the simulation's does not", conditions
        )
    ceiling = min(thresholds.numerics_ceiling_db, math.inf if float_db is None else float_db)
    drops = {name: min(bounded_db(simulation[name]), ceiling) - bounded_db(value) for name, value in checked.items()}
    worst = max(drops, key=drops.__getitem__)
    figures = f"{worst!r}: target {target[worst]:.1f} dB, simulation {simulation[worst]:.1f} dB against float"
    if float_db is not None and bounded_db(simulation[worst]) > float_db:
        figures += f", of which float16 can reach {float_db:g} dB"
    status = Status.PASS if drops[worst] <= thresholds.numerics_drop_db else Status.FAIL
    outcome = "target and simulation agree" if status is Status.PASS else "target and simulation disagree"
    return Verdict(status, f"{outcome}; {figures}", conditions, "outputs of the compiled graph", drops)


def with_overflow(verdict: Verdict, simulation: Agreement) -> Verdict:
    """Fail the verdict ``numerics`` if the simulation has NaN or infinity where float has none.

    The simulation is the graph that ships, so no target has to run: float16 overflows above 65504.
    """
    for name, comparison in simulation.outputs.items():
        is_float = name not in simulation.integer
        if is_float and math.isfinite(comparison.signal) and not math.isfinite(comparison.other):
            reason = f"the simulation's output {name!r} contains NaN or infinity, float's does not"
            evidence = f"the emitted graph in ONNX Runtime on {simulation.samples} samples"
            return replace(verdict, status=Status.FAIL, reason=reason, evidence=evidence, numbers={})
    return verdict


def with_selections(verdict: Verdict, simulation: Agreement, target: Agreement) -> Verdict:
    """Add to the verdict ``numerics`` the condition on rows that a TopK selected differently from float.

    Twice the noise gives about twice as many of them, and one more row per sample can always change.
    """
    counts = []
    for name, rows in target.rows.items():
        simulated = simulation.rows[name].replaced
        if not rows.replaced and not simulated:
            continue
        counts.append(
            f"{rows.replaced} of {rows.total} rows of {name!r} were selected differently from float, "
            f"{simulated} in the simulation"
        )
        if rows.replaced > 2 * simulated + target.samples and verdict.status is Status.PASS:
            reason = f"target and simulation select different rows; {counts[-1]}"
            return replace(verdict, status=Status.FAIL, reason=reason)
    return replace(verdict, reason="; ".join([verdict.reason, *counts[:1]]))


def with_integers(verdict: Verdict, simulation: Agreement, target: Agreement) -> Verdict:
    """Add to the verdict ``numerics`` the condition on integer outputs: classes, indices, flags.

    Noise changes some of them, on the target as in the simulation; a wrong computation changes most.
    """
    checked = sorted(simulation.integer - target.rows.keys())
    for name in checked:
        on_target, simulated = target.outputs[name], simulation.outputs[name]
        target_mismatches, mismatches = on_target.count - on_target.equal, simulated.count - simulated.equal
        limit = 2 * mismatches + _INTEGER_SLACK * on_target.count
        if target_mismatches > limit and verdict.status is not Status.FAIL:
            reason = (
                f"target and simulation disagree; {target_mismatches} of {on_target.count} integers of {name!r} differ "
                f"from float, {mismatches} in the simulation"
            )
            return replace(verdict, status=Status.FAIL, reason=reason)
    if checked and verdict.status is Status.NOT_CHECKED:
        reason = f"target and simulation agree on the integer outputs {', '.join(map(repr, checked))}"
        return replace(verdict, status=Status.PASS, reason=reason)
    return verdict
