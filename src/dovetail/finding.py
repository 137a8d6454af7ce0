"""What a run reports: findings (one broken rule at one place) and verdicts (pass, fail or not checked)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dovetail.edge import Edge


class Severity(StrEnum):
    """How bad a finding is: an error prevents deployment, a warning costs accuracy or speed, a note is informative."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class PlaceKind(StrEnum):
    """What a finding is about; ``TEXT`` is a place known only as text, as in results of schema version 1."""

    MODEL = "model"
    NODE = "node"
    TENSOR = "tensor"
    EDGE = "edge"
    FILE = "file"
    TARGET = "target"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a finding is, by the names of the caller's file; messages show it with ``str``.

    ``nodes``: the caller's nodes; for a tensor, those that produce it. ``tensor``: the caller's tensor; for a node, its
    first output. ``op_type``: the operator. ``edge``: the input concerned, if it is one, by the names of the planned
    graph, as in ``plan.json``. ``name``: the name of something outside the graph.
    """

    kind: PlaceKind
    nodes: tuple[str, ...] = ()
    tensor: str = ""
    op_type: str = ""
    edge: Edge | None = None
    name: str = ""

    def __str__(self) -> str:
        match self.kind:
            case PlaceKind.MODEL:
                return "the whole graph"
            case PlaceKind.NODE:
                return ", ".join(self.nodes) or self.tensor or "an unnamed node"
            case PlaceKind.TENSOR:
                return self.tensor
            case PlaceKind.EDGE:
                return str(self.edge)
            case PlaceKind.FILE | PlaceKind.TARGET | PlaceKind.TEXT:
                return self.name


WHOLE_MODEL = Place(PlaceKind.MODEL)


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule at one place, in original names."""

    code: str
    place: Place
    message: str
    severity: Severity = Severity.WARNING
    numbers: Mapping[str, float] = field(default_factory=dict)
    fix: str = ""


class Status(StrEnum):
    """The status of a verdict; a missing backend is never a pass."""

    PASS = "pass"
    FAIL = "fail"
    NOT_CHECKED = "not_checked"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one question about a run: status, reason, evidence, and by name the conditions to pass."""

    status: Status
    reason: str
    passes_when: Mapping[str, str] = field(default_factory=dict)
    evidence: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


_NUMERICS: Mapping[str, str] = {
    "float outputs": "SQNR({side}) >= min(SQNR(simulation), {numerics_ceiling_db:g} dB, the target's float16 limit if "
    "it computes in float16) - {numerics_drop_db:g} dB, both against float on the same samples",
    "rows after a TopK": "compared on the rows that both {side} and float selected; rows that float did not select: at "
    "most 2 x as many as in simulation, plus 1 per sample",
    "integer outputs": "values that differ from float: at most 2 x as many as in simulation, plus 5 % of all values",
    "NaN and infinity": "none in {side} and simulation where float has none",
}
# The conditions under which each verdict passes, by name; repeated in every result, so that it explains itself.
PASSES_WHEN: Mapping[str, Mapping[str, str]] = {
    "normalized": {
        "float outputs": ">= {normalized_db:g} dB against the original model on {normalized_samples} samples",
        "integer outputs": "equal to those of the original model",
    },
    "repaired": {
        "float outputs, with --float": "SQNR(repaired) >= SQNR(as given) - {repaired_drop_db:g} dB, both against the "
        "float model on the same samples",
        "top class, with --float": "that of the float model as often as in the model as given, less "
        "{repaired_share:.0%} of the samples; of fewer than 100 samples one may differ, which the evidence says",
        "float outputs, without --float": "SQNR(repaired) against the model as given >= {repaired_db:g} dB, or >= SQNR("
        "the model as given with only its types changed) - {repaired_drop_db:g} dB",
        "integer outputs": "mismatches <= those of the model as given (without --float: of the one with only its types "
        "changed) + {repaired_share:.0%} of the values or one value",
        "target": "if it ran, its outputs meet the same conditions on the samples that it ran",
        "evidence": "held-out samples, without --eval calibration samples; random data is not checked",
    },
    "compiled": {"graph": "the target's compiler accepted all of it"},
    "fidelity": {
        "changed": "no planned tensor or edge has a different dtype, scale or zero point in the compiled model",
        "not found": "every planned tensor or edge is found in the compiled model; if one is not, the verdict is not "
        "checked",
    },
    "numerics": {name: text.replace("{side}", "target") for name, text in _NUMERICS.items()},
    "accuracy": {
        "metric": "no value gets worse than in float by more than {max_drop:g}{max_drop_of}",
        "float outputs": "SQNR against float >= {min_sqnr_db:g} dB; integer outputs are not judged",
        "rows after a TopK": "judged on the rows that both sides selected",
        "evidence": "outputs of the target if it ran, otherwise of the simulation; random data never passes",
    },
    "budget": {
        "latency": "of the compiled model relative to the first baseline, by the vendor's estimate or measured on this "
        "machine: at most {max_latency}",
        "MACs in float": "fraction of all MACs: at most {max_float}",
    },
    "device": {
        **{name: text.replace("{side}", "device") for name, text in _NUMERICS.items()},
        "accuracy": "SQNR(device) against float >= {min_sqnr_db:g} dB, unless the samples are random; the metric is "
        "not computed, because the device runs too few samples",
        "source of outputs": "a device; outputs of an emulator never pass",
    },
}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits that verdicts apply; recorded in every result.

    ``numerics_ceiling_db``: a target need not exceed this, however good the simulation is: 16-bit kernels round more
    often than a simulation, which matters only at 70 to 90 dB, where it has no visible effect. ``max_drop``: how much
    any value of a metric may get worse, absolute; ``max_drop_of`` has other limits for values by name.
    ``max_latency``, ``max_float``: the caller's budget, if any.
    """

    normalized_db: float = 80.0
    normalized_samples: int = 3
    repaired_db: float = 30.0
    repaired_drop_db: float = 1.0
    repaired_share: float = 0.01
    numerics_drop_db: float = 3.0
    numerics_ceiling_db: float = 60.0
    min_sqnr_db: float = 10.0
    max_drop: float = 0.05
    max_drop_of: Mapping[str, float] = field(default_factory=dict)
    max_latency: float | None = None
    max_float: float | None = None

    def drop_of(self, name: str) -> float:
        """How much worse a value of the metric may get."""
        return self.max_drop_of.get(name, self.max_drop)


def passes_when(name: str, thresholds: Thresholds) -> dict[str, str]:
    """The conditions of a verdict by name, with the limits in force."""
    figures = dataclasses.asdict(thresholds)
    figures["max_drop_of"] = "".join(f", {name} by more than {drop:g}" for name, drop in thresholds.max_drop_of.items())
    for limit in ("max_latency", "max_float"):
        figures[limit] = "any" if figures[limit] is None else f"{figures[limit]:g}"
    return {condition: text.format(**figures) for condition, text in PASSES_WHEN[name].items()}
