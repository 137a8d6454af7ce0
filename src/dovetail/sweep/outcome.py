"""What came of fitting one graph: the verdicts, how each output compares, and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

_NAMES = re.compile(r"'[^']*'|\"[^\"]*\"|\b[\w/.]*\d[\w/.]*\b")


class FailureKind(StrEnum):
    """How a graph can fail, the worst first.

    ``UNEXPECTED``: an exception that is no answer of the product. ``UNFINISHED``: a process crashed or ran out of time.
    ``REFUSED``: not accepted, by the product or by the compiler. ``WRONG``: an output far below its simulation.
    ``DISAGREES``: the verdict ``numerics`` fails, by less than that. ``CHANGED``: the verdict ``fidelity`` fails.
    ``NOT_FOUND``: ``fidelity`` could not be checked although something is quantized. ``NOT_EQUAL``: the verdict
    ``normalized`` fails.
    """

    UNEXPECTED = "unexpected"
    UNFINISHED = "unfinished"
    REFUSED = "refused"
    WRONG = "wrong"
    DISAGREES = "disagrees"
    CHANGED = "changed"
    NOT_FOUND = "not found"
    NOT_EQUAL = "not equal"


# In these, the cause tells failures apart; in the others it is a figure.
_NAMED_CAUSE = (
    *(FailureKind.UNEXPECTED, FailureKind.UNFINISHED, FailureKind.REFUSED),
    *(FailureKind.CHANGED, FailureKind.NOT_FOUND),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """One way in which a graph fails: the sentence about it, and the codes of the findings, without notes."""

    kind: FailureKind
    cause: str
    codes: tuple[str, ...] = ()

    @property
    def signature(self) -> str:
        """The cause without names and numbers: equal for the same failure of another graph."""
        return " ".join(_NAMES.sub("_", self.cause).split()) if self.kind in _NAMED_CAUSE else ""

    def is_like(self, other: Failure) -> bool:
        """Whether another graph fails in the same way."""
        return self.kind is other.kind and self.signature == other.signature


@dataclass(frozen=True, slots=True)
class OutputQuality:
    """The SQNR of one output against float, on the target and in the simulation."""

    target_db: float
    simulation_db: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one graph; without ``failures`` it passed.

    ``workarounds``: decisions that were taken because the target computed something incorrectly. ``cpu_s``: the time
    that it took, children included.
    """

    failures: tuple[Failure, ...] = ()
    verdicts: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, OutputQuality] = field(default_factory=dict)
    workarounds: tuple[str, ...] = ()
    cpu_s: float = 0.0

    @property
    def is_wrong_and_passed(self) -> bool:
        """Whether an output is wrong although the verdict ``numerics`` passed: a defect of the verdict."""
        is_wrong = any(failure.kind is FailureKind.WRONG for failure in self.failures)
        return is_wrong and self.verdicts.get("numerics") == "pass"
