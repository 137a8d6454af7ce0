"""What the rules for QAIRT read of their input, and their documentation from the facts about the SDK."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import onnx_ir as ir

from dovetail.encodings import v2_0_0
from dovetail.encodings.records import TensorEncoding
from dovetail.finding import Place, PlaceKind, Severity
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import Check
from dovetail.targets.qairt.call import ConverterCall
from dovetail.targets.qairt.coloring import Domain, domains, predicted_domains
from dovetail.targets.qairt.export import version_of
from dovetail.targets.qairt.facts import fact, facts_about
from dovetail.targets.qairt.options import QairtFacts
from dovetail.targets.qairt.planned import planned_conversion
from dovetail.targets.qairt.predict import PredictedTensor, predict
from dovetail.targets.qairt.sdk import Answer, SdkFact, Subject
from dovetail.targets.qairt.ways import WayName

# How many names a message lists.
LISTED = 5
# What to do about tensors that were meant to be float16.
WAYS_OUT = (
    "give every integer tensor an entry and call the converter with --float_fallback --float_bitwidth 16 and without "
    "--input_list, or convert parts of one precision each; `dovetail fit` with this target writes both (docs/qairt.md)"
)
CONVERTER = Place(PlaceKind.TARGET, name="converter")
FILE = Place(PlaceKind.FILE, name="encodings")


@dataclass(frozen=True, eq=False)
class Conversion:
    """A graph that is converted with the entries of a file, and how the converter is called.

    ``whole``: the graph is converted as one, not in parts of one precision each.
    """

    model: ir.Model
    entries: Mapping[str, TensorEncoding]
    version: str
    call: ConverterCall
    facts: QairtFacts
    whole: bool = True

    @cached_property
    def predicted(self) -> Mapping[str, PredictedTensor]:
        """What the converter is predicted to make of every tensor, by name."""
        quantizer_v2 = self.quantizer_v2 if self.whole else None
        return predict(self.model, self.entries, self.call, self.facts.sdk, quantizer_v2=quantizer_v2)

    @property
    def quantizer_v2(self) -> SdkFact | None:
        """The fact by which Quantizer V2 runs: the file or the flag selects it, and the SDK is known to have it."""
        by_file = self.version == v2_0_0.VERSION and not self.call.ignore_encodings
        selecting = [Subject.READS_2_0_0] * by_file + [Subject.SELECTS_QUANTIZE_V2] * self.call.use_quantize_v2
        known = (fact(subject, self.facts.sdk) for subject in selecting)
        return next((row for row in known if row.answer is Answer.YES), None)

    @cached_property
    def domains(self) -> Mapping[str, Domain]:
        """What every node is predicted to compute in, by name."""
        return predicted_domains(self.model, self.predicted)


# The conversions of the inputs that are being checked; most rules ask for what is predicted of them.
_CONVERSIONS: WeakKeyDictionary[CheckInput, Conversion] = WeakKeyDictionary()


def conversion_of(subject: CheckInput) -> Conversion | None:
    """The conversion of the caller's own encodings; None if no encodings file was given.

    With --ignore_encodings it has no entries.
    """
    if subject.encodings is None or subject.raw is None:
        return None
    if subject not in _CONVERSIONS:
        facts, file = qairt_facts(subject), subject.encodings
        entries = {} if facts.call.ignore_encodings else file.entries
        _CONVERSIONS[subject] = Conversion(subject.raw, entries, file.version, facts.call, facts)
    return _CONVERSIONS[subject]


def given_or_planned(subject: CheckInput) -> Conversion | None:
    """The conversion of the caller's own encodings, or that of a plan, in the way that ``fit`` takes.

    None without either, for a QDQ model, and if the way has no converter.
    """
    if subject.plan is None or subject.raw is not None:
        return conversion_of(subject)
    facts = qairt_facts(subject)
    planned = planned_conversion(facts, subject.model, subject.plan)
    way = planned.taken(facts).name
    if way is WayName.QDQ:
        return None
    entries = planned.entries(way)
    version = version_of(facts.sdk, entries)
    return Conversion(planned.model, entries, version, planned.call(way), facts, way is not WayName.SPLIT)


def converted_graph(subject: CheckInput) -> tuple[ir.Model, Mapping[str, Domain]]:
    """The graph that is converted, and what its nodes compute in: as predicted of a file, or as planned.

    Without a file and without a plan, nothing is known about the nodes.
    """
    conversion = conversion_of(subject)
    if conversion is not None:
        return conversion.model, conversion.domains
    return subject.model, {} if subject.plan is None else domains(subject.model, subject.plan)


def qairt_facts(subject: CheckInput) -> QairtFacts:
    if not isinstance(subject.facts, QairtFacts):
        raise TypeError("a target with the rules for QAIRT must have an SDK version in its facts")
    return subject.facts


def severity_of(answer: Answer) -> Severity:
    """How bad it is that something depends on what an SDK does not do, or may not do."""
    return Severity.ERROR if answer is Answer.NO else Severity.WARNING


def listed(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(map(repr, names[:LISTED])) + more


def with_facts(*subjects: Subject) -> Callable[[Check], Check]:
    """Put the rows of the table of facts into the docstring of a rule, in place of ``{facts}``."""
    rows = "\n".join(f"- qairt: {row}" for row in facts_about(*subjects))

    def documented(check: Check) -> Check:
        check.__doc__ = (inspect.getdoc(check) or "").replace("{facts}", rows)
        return check

    return documented
