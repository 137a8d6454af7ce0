"""The ways to get a plan with float tensors through a locked SDK: can it, why, how it is known; ranked."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import onnx_ir as ir

from dovetail.storage import Plan
from dovetail.targets.qairt.call import ConverterCall
from dovetail.targets.qairt.coloring import boundaries, islands
from dovetail.targets.qairt.export import Difference, Exported, integers_only, not_as_planned
from dovetail.targets.qairt.facts import fact
from dovetail.targets.qairt.options import QairtFacts
from dovetail.targets.qairt.predict import PredictedTensor, predict
from dovetail.targets.qairt.roles import conv_addends
from dovetail.targets.qairt.sdk import Answer, SdkFact, Subject
from dovetail.targets.qnn_htp.qairt import MEASURED, WHEELS


class WayName(StrEnum):
    """The ways, in the order in which they are preferred if nothing else decides."""

    FALLBACK = "fallback"
    EXPLICIT = "explicit"
    SPLIT = "split"
    QDQ = "qdq"


# Which is better: the answer that the SDK can do it decides first.
_ORDER = (Answer.YES, Answer.UNKNOWN, Answer.NO)
# The calls of the converter. Every integer tensor has an entry, so that nothing is calibrated.
FALLBACK_CALL = ConverterCall(input_list=False, float_fallback=True, float_bits=16, bias_bits=32)
EXPLICIT_CALL = ConverterCall(input_list=True, float_bits=16, bias_bits=32)
_ABOUT = {
    WayName.FALLBACK: "every integer tensor has an entry, float tensors have none and fall back to float16: "
    "--float_fallback --float_bitwidth 16, no --input_list",
    WayName.EXPLICIT: "float tensors have entries of dtype float, no constant is left behind a Conv; --input_list",
    WayName.SPLIT: "the graph is cut where the precision changes: every part is wholly integer or wholly float, and is "
    "converted alone",
    WayName.QDQ: "the QDQ model is compiled by ONNX Runtime's QNN provider, built on your QAIRT, without converter",
}


@dataclass(frozen=True, slots=True)
class Way:
    """One way out: whether this SDK can do it, from which facts that follows, and what is predicted.

    ``differs``: tensors that are predicted to have another precision than planned. ``islands``: groups of connected
    float operators; ``boundaries``: tensors between float and integer operators.
    """

    name: WayName
    about: str
    can: Answer
    why: str
    facts: tuple[str, ...]
    islands: int
    boundaries: int
    parts: int = 1
    differs: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """All ways, the best one first, and the prediction of each that converts the whole graph."""

    ranked: tuple[Way, ...]
    predictions: dict[WayName, dict[str, PredictedTensor]] = field(default_factory=dict)

    def named(self, name: WayName) -> Way:
        return next(way for way in self.ranked if way.name is name)


def ways_out(model: ir.Model, plan: Plan, export: Exported, facts: QairtFacts, parts: int) -> Ways:
    """The ways for a plan, ranked: what the SDK is known to do first, then the fewest tensors not as planned."""
    entries = {WayName.FALLBACK: integers_only(export.entries), WayName.EXPLICIT: export.entries}
    calls = {WayName.FALLBACK: FALLBACK_CALL, WayName.EXPLICIT: EXPLICIT_CALL}
    predictions = {name: predict(model, entries[name], calls[name], facts.sdk) for name in calls}
    differs = {name: not_as_planned(model, plan, rows) for name, rows in predictions.items()}
    count, crossing = len(islands(model, plan)), boundaries(model, plan)
    answers = {
        WayName.FALLBACK: _fallback(facts, count),
        WayName.EXPLICIT: _explicit(model, export, facts, count),
        WayName.SPLIT: _split(facts, parts),
        WayName.QDQ: _qdq(facts),
    }
    ways = [
        Way(
            name,
            _ABOUT[name],
            can,
            why,
            tuple(str(row) for row in rows),
            count,
            crossing,
            parts if name is WayName.SPLIT else 1,
            differs.get(name, ()),
            export.lost if name in calls else (),
        )
        for name, (can, why, rows) in answers.items()
    ]
    ranked = sorted(ways, key=lambda way: (_ORDER.index(way.can), len(way.differs), list(WayName).index(way.name)))
    return Ways(tuple(ranked), predictions)


_Judged = tuple[Answer, str, tuple[SdkFact, ...]]


def _worst(rows: tuple[SdkFact, ...]) -> Answer:
    return max((row.answer for row in rows), key=_ORDER.index)


def _mixes(facts: QairtFacts, count: int) -> tuple[SdkFact, ...]:
    """The fact about mixtures, which applies if the float operators are not all connected."""
    return (fact(Subject.ISLANDS_COMPILE, facts.sdk),) if count > 1 else ()


def _fallback(facts: QairtFacts, count: int) -> _Judged:
    rows = (fact(Subject.HAS_FLOAT_FALLBACK, facts.sdk), *_mixes(facts, count))
    if count > 1:
        why = (
            f"the float operators are {count} islands that are not connected: every boundary can hand on a layout that "
            "the next operator has no kernel for"
        )
    else:
        why = "the float operators are one island" if count else "no operator is in float"
    return _worst(rows), why, rows


def _explicit(model: ir.Model, export: Exported, facts: QairtFacts, count: int) -> _Judged:
    row = fact(Subject.FLOAT_ENTRIES, facts.sdk)
    left = {str(value.name) for _, value in conv_addends(model) if str(value.name) not in export.entries}
    rows = (row, *_mixes(facts, count))
    if not any(entry.is_float for entry in export.entries.values()):
        return Answer.YES, "no tensor is in float, so that there are no float entries", ()
    if row.answer is Answer.NO and not left:
        why = "the constants that the failure of this SDK names are folded away; whether others trip it is not known"
        return max(Answer.UNKNOWN, _worst(rows[1:]) if rows[1:] else Answer.UNKNOWN, key=_ORDER.index), why, rows
    why = f"constants without an entry behind a Conv are left: {', '.join(sorted(left))}" if left else row.text
    return _worst(rows), why, rows


def _split(facts: QairtFacts, parts: int) -> _Judged:
    row = fact(Subject.ONE_PRECISION, facts.sdk)
    return row.answer, f"{parts} parts, each of one precision; the caller runs them one after another", (row,)


def _qdq(facts: QairtFacts) -> _Judged:
    if facts.sdk in MEASURED:
        wheel = f"onnxruntime-qnn {WHEELS[facts.sdk]} contains this QAIRT"
        return Answer.YES, f"{wheel}: `--target qnn-htp:{facts.chip.name}` compiles and checks the same plan", ()
    why = (
        f"no onnxruntime-qnn wheel contains QAIRT {facts.sdk_text}: ONNX Runtime must be built with it, or the runtime "
        "on the device must load what a newer one wrote"
    )
    return Answer.UNKNOWN, why, ()
