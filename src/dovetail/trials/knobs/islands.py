"""An operator that the target computes wrongly in integers is tried in another precision, all else as it is."""

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
    """The knob, for a target that can keep single operators in this precision."""
    return Knob(NAME, workaround=partial(_workaround, precision))


def _workaround(precision: Precision, variant: Variant, located: FaultLocation) -> Workaround | None:
    request = variant.request
    if located.unit in request.pins.units:  # the caller has said what it computes in
        return None
    text = f"computed wrongly as planned: kept in {precision.name}"
    free = replace(variant, request=replace(request, pins=request.pins.without_operands_of(located.unit)))
    return Workaround(pinned(Pins({located.unit: Pin(precision, Reason.MEASURED, text)}))(free), precision.name)
