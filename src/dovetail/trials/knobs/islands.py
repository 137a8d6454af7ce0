"""Workaround for an operator that the target computes wrongly: only this operator in another precision."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from dovetail.op_support import Precision
from dovetail.plan.request import Pin, Pins
from dovetail.storage import Reason
from dovetail.trials.knob import Knob, Workaround
from dovetail.trials.locate import FaultLocation
from dovetail.trials.variant import Variant, pinned

NAME = "island"


def islands(precision: Precision) -> Knob:
    """The knob for a target that supports single operators in this precision."""
    return Knob(NAME, workaround=partial(_workaround, precision))


def _workaround(precision: Precision, variant: Variant, located: FaultLocation) -> Workaround | None:
    request = variant.request
    if located.unit in request.pins.units:  # the caller has fixed its precision
        return None
    text = f"kept in {precision.name}, because the target computes it wrongly in the planned precision"
    free = replace(variant, request=replace(request, pins=request.pins.without_operands_of(located.unit)))
    return Workaround(pinned(Pins({located.unit: Pin(precision, Reason.MEASURED, text)}))(free), precision.name)
