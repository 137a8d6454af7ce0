"""Which way a plan goes through the customer's SDK, as a decision: all ways with what is known about them."""

from __future__ import annotations

from functools import partial

from dovetail.finding import WHOLE_MODEL
from dovetail.targets.qairt.options import QairtFacts
from dovetail.targets.qairt.planned import planned_conversion
from dovetail.targets.qairt.sdk import Answer
from dovetail.targets.qairt.ways import Way
from dovetail.trials.decision import Alternative, Decision
from dovetail.trials.knob import Knob, Outcome
from dovetail.trials.variant import Variant
from dovetail.trials.workbench import Workbench

NAME = "conversion"
_RULE = (
    "by public reports about the SDK, none of which was checked: first the ways that it is known to support, then the "
    "fewest tensors that are predicted not to be as planned"
)


def conversion(facts: QairtFacts) -> Knob:
    """The knob, which changes nothing in the plan."""
    return Knob(NAME, partial(_decide, facts))


def _decide(facts: QairtFacts, workbench: Workbench, variant: Variant) -> Outcome:
    conversion = planned_conversion(facts, variant.model, workbench.plan(variant))
    ways, taken = conversion.ways, conversion.taken(facts)
    reason = (
        f"{'--option strategy chose it; ' if facts.strategy else ''}can QAIRT {facts.sdk_text} do it: {taken.can}; "
    )
    alternatives = tuple(_alternative(way) for way in ways.ranked)
    decision = Decision(NAME, WHOLE_MODEL, str(taken.name), alternatives, _RULE, f"{reason}{taken.why}", 0)
    return variant, (decision,)


def _alternative(way: Way) -> Alternative:
    figures = {
        "islands": way.islands,
        "boundaries": way.boundaries,
        "parts": way.parts,
        **({} if way.differs is None else {"not_as_planned": len(way.differs)}),
    }
    failure = f"can this SDK do it: {way.can}; {way.why}" if way.can is Answer.NO else ""
    return Alternative(str(way.name), {name: float(value) for name, value in figures.items()}, failure)
