"""What the rules for QAIRT read of their input, and their documentation from the facts about the SDK."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.encodings.records import Encodings
from dovetail.finding import Place, PlaceKind, Severity
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import Check
from dovetail.targets.qairt.facts import facts_about
from dovetail.targets.qairt.options import QairtFacts
from dovetail.targets.qairt.predict import PredictedTensor, predict
from dovetail.targets.qairt.sdk import Answer, Subject

# How many names a message lists.
LISTED = 5
# What to do about tensors that were meant to be float16.
WAYS_OUT = (
    "give every integer tensor an entry and call the converter with --float_fallback --float_bitwidth 16 and without "
    "--input_list, or convert parts of one precision each; `dovetail fit` with this target writes both (docs/qairt.md)"
)
CONVERTER = Place(PlaceKind.TARGET, name="converter")
FILE = Place(PlaceKind.FILE, name="encodings")


@dataclass(frozen=True, slots=True, eq=False)
class Conversion:
    """The customer's graph with its encodings, and how it is converted."""

    model: ir.Model
    encodings: Encodings
    facts: QairtFacts

    def predicted(self) -> Mapping[str, PredictedTensor]:
        return predict(self.model, self.encodings.entries, self.facts.call, self.facts.sdk)


def conversion_of(subject: CheckInput) -> Conversion | None:
    """The conversion that a check is about; None if no encodings file was given."""
    if subject.encodings is None or subject.raw is None:
        return None
    return Conversion(subject.raw, subject.encodings, qairt_facts(subject))


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
