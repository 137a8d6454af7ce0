"""What a knob is: where something can be changed for a target, and how the alternatives there are chosen from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.trials.decision import Decision
from dovetail.trials.locate import FaultLocation
from dovetail.trials.variant import Variant
from dovetail.trials.workbench import Workbench

Outcome = tuple[Variant, tuple[Decision, ...]]


def leave(bench: Workbench, variant: Variant) -> Outcome:
    """Decide nothing."""
    return variant, ()


@dataclass(frozen=True, slots=True)
class Workaround:
    """What to try about an operator that the target computes wrongly: the variant, and what it is called."""

    variant: Variant
    label: str


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing that is chosen by trying.

    ``decide``: the variant with the best alternative, before anything ships. ``workaround``: what to try about an
    operator that the target computes wrongly; None where this knob has nothing to offer.
    """

    name: str
    decide: Callable[[Workbench, Variant], Outcome] = leave
    workaround: Callable[[Variant, FaultLocation], Workaround | None] = lambda variant, located: None


def decide_all(knobs: tuple[Knob, ...], bench: Workbench, variant: Variant) -> Outcome:
    """Every knob in turn, each on what the ones before it decided."""
    decisions: tuple[Decision, ...] = ()
    for knob in knobs:
        variant, more = knob.decide(bench, variant)
        decisions += more
    return variant, decisions
