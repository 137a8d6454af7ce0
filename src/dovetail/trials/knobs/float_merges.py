"""Whether a merging operator (Concat) runs in float instead of sharing one range over its quantized inputs.

Sharing one range costs accuracy where the inputs have different ranges. If the target can run the merge in float, and
the worst output gains more than ``GAIN_DB``, the plan keeps it in float.
"""

from __future__ import annotations

from functools import reduce

from dovetail.encoding import QParams
from dovetail.model.place import at_node
from dovetail.op_support import FP32
from dovetail.plan.constraints import Unit, build_problem
from dovetail.plan.request import Pin, Pins
from dovetail.storage import Reason
from dovetail.trials.decision import Alternative, Decision
from dovetail.trials.knob import Knob, Outcome
from dovetail.trials.policy import take_each_better
from dovetail.trials.variant import Variant, pinned
from dovetail.trials.workbench import Workbench

NAME = "merges"
# A merge is kept in float if the worst output gains more than this.
GAIN_DB = 3.0
SAMPLES = 16
CRITERION = f"in float, if the worst output gains more than {GAIN_DB:g} dB in simulation"
SHARED, IN_FLOAT = "one range for all inputs", "float"


def decide(workbench: Workbench, variant: Variant) -> Outcome:
    """Pin every merge to float that gains enough, on top of those before it."""
    planned = workbench.plan(variant).tensors
    units = [
        unit
        for unit in build_problem(variant.model, workbench.table).units
        if len(unit.shared()) > 1
        and unit.name not in variant.request.pins.units  # the caller has fixed its precision
        and isinstance(planned[unit.outputs[0].name or ""].storage, QParams)
    ]
    if not workbench.samples(SAMPLES):
        return variant, ()
    measured: dict[int, tuple[Variant, float]] = {}  # the workbench would plan and emit a variant again to know it

    def worst_db(candidate: Variant) -> float:
        if id(candidate) not in measured:
            measured[id(candidate)] = candidate, workbench.worst_db(candidate, SAMPLES)
        return measured[id(candidate)][1]

    rows = take_each_better(
        variant,
        units,
        lambda state, merges: reduce(lambda one, unit: in_float(unit, one), merges, state),
        lambda shared, float_merges: worst_db(float_merges) - worst_db(shared) > GAIN_DB,
    )
    samples = len(workbench.samples(SAMPLES))
    decisions = [
        _decision(unit, len(merges), worst_db(shared), worst_db(float_merges), accepted, samples)
        for merges, shared, float_merges, accepted in rows
        for unit in merges
    ]
    for _, _, float_merges, accepted in rows:
        variant = float_merges if accepted else variant
    return variant, tuple(decisions)


FLOAT_MERGES = Knob(NAME, decide)


def in_float(unit: Unit, variant: Variant) -> Variant:
    """The variant with one merge in float, each of whose inputs keeps its own range."""
    text = f"one range for all inputs of {unit.label} costs more than {GAIN_DB:g} dB"
    edges = {operand.edge: text for operand in unit.shared() if not operand.constant}
    return pinned(Pins({unit.name: Pin(FP32, Reason.MEASURED, text)}, separate=edges))(variant)


def _decision(unit: Unit, together: int, shared_db: float, float_db: float, accepted: bool, samples: int) -> Decision:
    """``together``: the number of merges that were measured in float at once, because all of them gain too little."""
    others = f" and those of {together - 1} other Concat{'s' * (together > 2)}" if together > 1 else ""
    return Decision(
        knob=NAME,
        place=at_node(unit.nodes[0]),
        taken=IN_FLOAT if accepted else SHARED,
        alternatives=(
            Alternative(SHARED, {"simulation_sqnr_db": shared_db}),
            Alternative(IN_FLOAT, {"simulation_sqnr_db": float_db}),
        ),
        rule=CRITERION,
        reason=f"one range for all its inputs{others} costs {float_db - shared_db:.1f} dB",
        samples=samples,
    )
