"""The verdict ``repaired``: whether a repaired model is worse than the model as given, its own Q/DQ run literally."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.finding import Status, Thresholds, Verdict, passes_when
from dovetail.model.class_scores import class_outputs
from dovetail.model.ranked import ranked_outputs
from dovetail.model.session import Mode
from dovetail.qdq.quantized_io import RunSamples
from dovetail.verify.compare import Agreement, compare_runs, side_by_side
from dovetail.verify.run import SessionRun
from dovetail.verify.verdicts import bounded_db

# Below this the model as given has next to nothing in common with the float model.
_UNRELATED_DB = 3.0
NAME = "repaired"


@dataclass(frozen=True, slots=True, eq=False)
class RepairStreams:
    """The models to compare, each as a stream of outputs, and the float graph that the repaired model was made from.

    ``reference``: the float model that the caller gave. ``types_only``: the model as given with only its types changed,
    or why it cannot be run.
    """

    graph: ir.Graph
    as_given: RunSamples
    repaired: RunSamples
    reference: RunSamples | None
    types_only: RunSamples | str


def not_checked(reason: str, thresholds: Thresholds) -> Verdict:
    """The verdict where nothing could be compared."""
    return Verdict(Status.NOT_CHECKED, reason, passes_when(NAME, thresholds))


def judge_repair(streams: RepairStreams, samples: list[Sample], source: str, thresholds: Thresholds) -> Verdict:
    """Run all models on the samples and compare them."""
    if streams.reference is not None:
        return _against_float(streams, streams.reference, samples, source, thresholds)
    return _against_as_given(streams, samples, source, thresholds)


def literal_run(model: Path | ir.Model, folder: Path) -> RunSamples:
    """A QDQ model as a stream, every QuantizeLinear and DequantizeLinear computed as ONNX defines it."""
    return SessionRun(model, Mode.EXACT, folder)


def _against_float(
    streams: RepairStreams, reference: RunSamples, samples: list[Sample], source: str, thresholds: Thresholds
) -> Verdict:
    ranked, classes = ranked_outputs(streams.graph), class_outputs(streams.graph)
    expected = list(reference(samples))
    as_given, repaired = (
        compare_runs(expected, stream(samples), ranked, classes) for stream in (streams.as_given, streams.repaired)
    )
    before, after = _figures(as_given, repaired)
    numbers = {f"as given: {name}": value for name, value in before.items()}
    numbers |= {f"repaired: {name}": value for name, value in after.items()}
    conditions = passes_when(NAME, thresholds)
    evidence = f"{len(samples)} samples of {source}: float, as given and repaired in ONNX Runtime, Q and DQ literally"
    if before and all(value < _UNRELATED_DB for value in before.values()):
        reason = (
            f"the model as given is at {max(before.values()):.1f} dB or less against the float model: it was quantized "
            "from another model, or its quantization parameters are wrong"
        )
        return Verdict(Status.NOT_CHECKED, reason, conditions, evidence, numbers)
    for name in sorted(as_given.top1):
        allowed = max(thresholds.repaired_share, 1 / len(samples))
        if repaired.top1[name] < as_given.top1[name] - allowed - 1e-9:
            reason = (
                f"the top class of {name!r} is that of the float model on {repaired.top1[name]:.1%} of the samples, in "
                f"the model as given on {as_given.top1[name]:.1%}"
            )
            return Verdict(Status.FAIL, reason, conditions, evidence, numbers)
    if (mismatch := _integer_mismatch(as_given, repaired, thresholds)) is not None:
        return Verdict(Status.FAIL, mismatch, conditions, evidence, numbers)
    if not before:
        return Verdict(Status.PASS, "the integer outputs are as in the model as given", conditions, evidence, numbers)
    worst = max(before, key=lambda name: before[name] - after[name])
    figures = f"{worst!r}: repaired {after[worst]:.1f} dB, as given {before[worst]:.1f} dB against float"
    if before[worst] - after[worst] > thresholds.repaired_drop_db:
        if not isinstance(streams.types_only, str):
            types_only = compare_runs(expected, streams.types_only(samples), ranked)
            types, _ = _figures(types_only, repaired)
            figures += f"; the change of types alone gives {types[worst]:.1f} dB"
            numbers[f"types alone: {worst}"] = types[worst]
        return Verdict(Status.FAIL, f"worse than the model as given; {figures}", conditions, evidence, numbers)
    return Verdict(Status.PASS, f"not worse than the model as given; {figures}", conditions, evidence, numbers)


def _against_as_given(streams: RepairStreams, samples: list[Sample], source: str, thresholds: Thresholds) -> Verdict:
    ranked = ranked_outputs(streams.graph)
    expected = list(streams.as_given(samples))
    repaired = compare_runs(expected, streams.repaired(samples), ranked)
    types_only = repaired
    if not isinstance(streams.types_only, str):
        types_only = compare_runs(expected, streams.types_only(samples), ranked)
    types, after = _figures(types_only, repaired)
    numbers = {f"repaired: {name}": value for name, value in after.items()}
    if types_only is not repaired:
        numbers |= {f"types alone: {name}": value for name, value in types.items()}
    else:
        types = dict.fromkeys(after, math.inf)
    conditions = passes_when(NAME, thresholds)
    evidence = f"{len(samples)} samples of {source}: as given and repaired in ONNX Runtime, Q and DQ literally"
    if (mismatch := _integer_mismatch(types_only, repaired, thresholds)) is not None:
        return Verdict(Status.FAIL, mismatch, conditions, evidence, numbers)
    if not after:
        return Verdict(Status.PASS, "the integer outputs are as in the model as given", conditions, evidence, numbers)
    limits = {name: min(thresholds.repaired_db, types[name] - thresholds.repaired_drop_db) for name in after}
    worst = max(after, key=lambda name: limits[name] - after[name])
    figures = f"{worst!r}: {after[worst]:.1f} dB against the model as given; "
    if types_only is repaired:
        figures += f"the cost of the types alone is not known: {streams.types_only}"
    else:
        figures += f"the change of types alone gives {types[worst]:.1f} dB"
    if after[worst] < limits[worst]:
        reason = f"differs from the model as given; {figures}; add --float MODEL to compare with the float model"
        return Verdict(Status.FAIL, reason, conditions, evidence, numbers)
    return Verdict(Status.PASS, f"computes what the model as given computes; {figures}", conditions, evidence, numbers)


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
