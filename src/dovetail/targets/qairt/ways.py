"""The ways to get a plan with float tensors through a locked SDK: can it, why, how it is known; ranked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import onnx_ir as ir

from dovetail.encodings.records import TensorEncoding
from dovetail.storage import Plan
from dovetail.targets.qairt.call import ConverterCall
from dovetail.targets.qairt.coloring import Domain, boundaries, domains, islands
from dovetail.targets.qairt.export import (
    READS,
    Difference,
    Exported,
    integers_only,
    lost_edges,
    not_as_planned,
    not_predicted,
    part_entries,
    version_of,
    with_two_entries,
    without_original_name,
)
from dovetail.targets.qairt.facts import fact
from dovetail.targets.qairt.mixed_matmul import mixed_matmuls
from dovetail.targets.qairt.options import QairtFacts
from dovetail.targets.qairt.parts import ModelPart
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
_EXPLICIT_CALL = ConverterCall(input_list=True, float_bits=16, bias_bits=32)
_ABOUT = {
    WayName.FALLBACK: "every integer tensor has an entry, float tensors have none and fall back to float16: "
    "--float_fallback --float_bitwidth 16, no --input_list",
    WayName.EXPLICIT: "float tensors have entries of dtype float, no constant is left after a Conv; --input_list",
    WayName.SPLIT: "the graph is cut where the precision changes: every part is wholly integer or wholly float, and is "
    "converted alone",
    WayName.QDQ: "the QDQ model is compiled by ONNX Runtime's QNN provider, built on your QAIRT, without converter",
}


def explicit_call(export: Exported) -> ConverterCall:
    """The call with float entries: what has no entry is calibrated to the widest activations of the plan."""
    activations = [entry.bits for entry in integers_only(export.entries).values() if not entry.is_parameter]
    return replace(_EXPLICIT_CALL, act_bits=max(activations, default=_EXPLICIT_CALL.act_bits))


@dataclass(frozen=True, slots=True)
class Way:
    """One way out: whether this SDK can do it, from which facts that follows, and what is predicted.

    ``differs``: tensors, edges and operators that are predicted in another precision than planned; None if nothing is
    predicted. ``not_predicted``: planned tensors that the prediction has no row for. ``islands``: groups of connected
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
    differs: tuple[Difference, ...] | None = None
    not_predicted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """All ways, the best one first, and the prediction of each that converts the whole graph."""

    ranked: tuple[Way, ...]
    predictions: dict[WayName, dict[str, PredictedTensor]] = field(default_factory=dict)

    def named(self, name: WayName) -> Way:
        return next(way for way in self.ranked if way.name is name)


def ways_out(model: ir.Model, plan: Plan, export: Exported, facts: QairtFacts, parts: tuple[ModelPart, ...]) -> Ways:
    """The ways for a plan, ranked: what the SDK is known to do first, then the fewest tensors not as planned.

    ``parts``: those of the split; empty if the graph is not to be changed, so that it cannot be cut.
    """
    entries = {WayName.FALLBACK: integers_only(export.entries), WayName.EXPLICIT: export.entries}
    calls = {WayName.FALLBACK: FALLBACK_CALL, WayName.EXPLICIT: explicit_call(export)}
    predictions = {name: predict(model, entries[name], calls[name], facts.sdk) for name in calls}
    of_node = domains(model, plan)
    count, crossing = len(islands(model, of_node)), boundaries(model, of_node)
    answers = {WayName.FALLBACK: _fallback(facts, count), WayName.EXPLICIT: _explicit(model, export, facts, count)}
    relied_on = _relied_on(model, plan, export, facts)
    answers = {name: (can, why, (*rows, *relied_on)) for name, (can, why, rows) in answers.items()}
    answers = {name: _with_kernels(judged, model, predictions[name], facts) for name, judged in answers.items()}
    if parts:
        entries[WayName.SPLIT] = entries[WayName.FALLBACK]
        answers[WayName.SPLIT] = _split(facts, len(parts))
    answers = {name: _with_file(judged, entries[name], facts) for name, judged in answers.items()}
    answers[WayName.QDQ] = _qdq(facts)
    ways = []
    for name, (can, why, rows) in answers.items():
        way = Way(name, _ABOUT[name], can, why, tuple(map(str, rows)), count, crossing)
        if name in predictions:
            differs = not_as_planned(model, plan, export, predictions[name])
            if facts.keep_graph:
                unnamed = without_original_name(model, entries[name])
                differs = (*differs, *unnamed, *with_two_entries(model, export.entries))
            left = not_predicted(model, plan, predictions[name])
            way = replace(way, differs=differs, not_predicted=left, notes=tuple(map(str, export.lost)))
        if name is WayName.SPLIT:
            way = replace(way, parts=len(parts), notes=_lost_in_parts(parts, plan, export))
        ways.append(way)
    return Ways(tuple(sorted(ways, key=_rank)), predictions)


def _lost_in_parts(parts: tuple[ModelPart, ...], plan: Plan, export: Exported) -> tuple[str, ...]:
    """The edges of integer parts that their encodings cannot have."""
    models = [part.model for part in parts if part.domain is Domain.INTEGER]
    lost = (lost_edges(model, plan, part_entries(model, plan, export.entries)) for model in models)
    return tuple(str(edge) for edges in lost for edge in edges)


def _rank(way: Way) -> tuple[int, bool, int, int]:
    """The answer first; then the fewest differences, where a way without prediction has an unknown number of them."""
    count = 0 if way.differs is None else len(way.differs)
    return _ORDER.index(way.can), way.differs is None, count, list(WayName).index(way.name)


_Judged = tuple[Answer, str, tuple[SdkFact, ...]]


def _relied_on(model: ir.Model, plan: Plan, export: Exported, facts: QairtFacts) -> tuple[SdkFact, ...]:
    """The facts that the entries of a plan rely on where float and integer operators meet."""
    of_node = domains(model, plan)
    written = [
        value for node in model.graph if of_node[str(node.name)] is Domain.FLOAT for value in node.outputs if value.name
    ]
    quantized = any(not entry.is_float for v in written if (entry := export.entries.get(str(v.name))) is not None)
    subjects = (
        *((Subject.FLOAT_RESULT,) if quantized else ()),
        *((Subject.SYMMETRIC_OPERAND,) if export.symmetric else ()),
    )
    return tuple(fact(subject, facts.sdk) for subject in subjects)


def _worst(rows: tuple[SdkFact, ...]) -> Answer:
    return max((row.answer for row in rows), key=_ORDER.index)


def _with_kernels(
    judged: _Judged, model: ir.Model, predicted: Mapping[str, PredictedTensor], facts: QairtFacts
) -> _Judged:
    """The answer with that about MatMuls of float16 by 8 bit, of which the prediction may have some."""
    can, why, rows = judged
    mixed = list(mixed_matmuls(model, predicted, facts.sdk))
    if not mixed:
        return judged
    known = tuple(dict.fromkeys(each.fact for each in mixed))
    names = ", ".join(str(each.node.name) for each in mixed)
    why = f"{why}; predicted to multiply float16 by 8 bit, with the entries of this plan: {names}"
    return max(can, _worst(known), key=_ORDER.index), why, (*rows, *known)


def _with_file(judged: _Judged, entries: Mapping[str, TensorEncoding], facts: QairtFacts) -> _Judged:
    """The answer with those about the encodings file: its version, and blocks."""
    can, why, rows = judged
    known = [fact(READS[version_of(facts.sdk, entries)], facts.sdk)]
    if any(entry.is_blocked for entry in entries.values()):
        known.append(fact(Subject.READS_BLOCKS, facts.sdk))
    for row in known:
        if row.answer is not Answer.YES:
            why = f"{why}; {row.subject}: {row.answer}"
    return max(can, _worst(tuple(known)), key=_ORDER.index), why, (*rows, *known)


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
        constants = "no constant of those that the failure of this SDK names is left"
        if not facts.keep_graph:
            constants = "the constants that the failure of this SDK names are folded away"
        why = f"{constants}; whether others trip it is not known"
        return max(Answer.UNKNOWN, _worst(rows[1:]) if rows[1:] else Answer.UNKNOWN, key=_ORDER.index), why, rows
    why = f"constants without an entry after a Conv are left: {', '.join(sorted(left))}" if left else row.text
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
