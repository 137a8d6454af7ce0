"""Knobs: what can be changed for a target, and how one of the alternatives is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.trials.decision import Decision
from dovetail.trials.locate import FaultLocation
from dovetail.trials.variant import Variant
from dovetail.trials.workbench import Workbench

Outcome = tuple[Variant, tuple[Decision, ...]]


def decide_nothing(workbench: Workbench, variant: Variant) -> Outcome:
    """The variant as it is, without a decision."""
    return variant, ()


@dataclass(frozen=True, slots=True)
class Workaround:
    """A variant to try if the target computes an operator wrongly, and a label for it."""

    variant: Variant
    label: str


@dataclass(frozen=True, slots=True)
class Knob:
    """One choice that is made by trials.

    ``decide``: returns the variant with the best alternative, before the final build. ``workaround``: returns what to
    try if the target computes an operator wrongly; None where this knob has no workaround.
    """

    name: str
    decide: Callable[[Workbench, Variant], Outcome] = decide_nothing
    workaround: Callable[[Variant, FaultLocation], Workaround | None] = lambda variant, located: None


def decide_all(knobs: tuple[Knob, ...], workbench: Workbench, variant: Variant) -> Outcome:
    """Run every knob in turn, each on the variant that the knobs before it chose."""
    decisions: tuple[Decision, ...] = ()
    for knob in knobs:
        variant, more = knob.decide(workbench, variant)
        decisions += more
    return variant, decisions
