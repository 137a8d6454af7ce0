"""Whether a merge (Concat) that would share one range over its inputs runs in float between integers instead.

Sharing one range costs accuracy where the inputs are of different size. Where the target runs the merge in float as
well, and the outputs gain more than ``GAIN_DB`` by it, that is what is planned.
"""

from __future__ import annotations

from dovetail.encoding import QParams
from dovetail.model.place import at_node
from dovetail.op_support import FP32
from dovetail.plan.constraints import Unit, build_problem
from dovetail.plan.request import Pin, Pins
from dovetail.storage import Reason
from dovetail.trials.decision import Alternative, Decision
from dovetail.trials.knob import Knob, Outcome
from dovetail.trials.policy import take_while_better
from dovetail.trials.variant import Variant, pinned
from dovetail.trials.workbench import Workbench

NAME = "merges"
# What sharing one range may cost the worst output before a merge is left float.
GAIN_DB = 3.0
SAMPLES = 16
RULE = f"in float, where the worst output gains more than {GAIN_DB:g} dB by it in simulation"
SHARED, IN_FLOAT = "one range for all inputs", "float"


def decide(bench: Workbench, variant: Variant) -> Outcome:
    """Pin every merge to float that gains by it, one after the other."""
    planned = bench.plan(variant).tensors
    units = [
        unit
        for unit in build_problem(variant.model, bench.table).units
        if len(unit.shared()) > 1
        and unit.name not in variant.request.pins.units  # of which the caller has said what it computes in
        and isinstance(planned[unit.outputs[0].name or ""].storage, QParams)
    ]
    if not bench.samples(SAMPLES):
        return variant, ()
    rows = take_while_better(
        variant,
        units,
        lambda state, unit: in_float(unit, state),
        lambda state, other: bench.worst_db(other, SAMPLES) - bench.worst_db(state, SAMPLES) > GAIN_DB,
    )
    decisions = [_decision(bench, unit, state, other, taken) for unit, state, other, taken in rows]
    for _, state, other, taken in rows:
        variant = other if taken else state
    return variant, tuple(decisions)


FLOAT_MERGES = Knob(NAME, decide)


def in_float(unit: Unit, variant: Variant) -> Variant:
    """The variant with one merge in float, which reads every input as it is stored."""
    text = f"one range for all parts of {unit.label} costs more than {GAIN_DB:g} dB"
    edges = {operand.edge: text for operand in unit.shared() if not operand.constant}
    return pinned(Pins({unit.name: Pin(FP32, Reason.MEASURED, text)}, separate=edges))(variant)


def _decision(bench: Workbench, unit: Unit, shared: Variant, other: Variant, taken: bool) -> Decision:
    shared_db, float_db = bench.worst_db(shared, SAMPLES), bench.worst_db(other, SAMPLES)
    return Decision(
        knob=NAME,
        place=at_node(unit.nodes[0]),
        taken=IN_FLOAT if taken else SHARED,
        alternatives=(
            Alternative(SHARED, {"simulation_sqnr_db": shared_db}),
            Alternative(IN_FLOAT, {"simulation_sqnr_db": float_db}),
        ),
        rule=RULE,
        reason=f"one range for all its inputs costs {float_db - shared_db:.1f} dB",
        samples=len(bench.samples(SAMPLES)),
    )
