"""A knob in one file: whether the layers that consume the model's inputs run in float, chosen by the SQNR they gain."""

from __future__ import annotations

from dovetail.finding import Place, PlaceKind
from dovetail.op_support import FP32
from dovetail.plan.constraints import build_problem
from dovetail.plan.request import Pin, Pins
from dovetail.storage import Reason
from dovetail.trials.decision import Alternative, Decision
from dovetail.trials.knob import Knob, Outcome
from dovetail.trials.variant import Variant, pinned
from dovetail.trials.workbench import Workbench

NAME = "first_layer"
# The least that the worst output must gain, because a layer in float costs time.
GAIN_DB = 6.0
SAMPLES = 8
CRITERION = f"in float, if the worst output gains more than {GAIN_DB:g} dB in simulation"


def decide(workbench: Workbench, variant: Variant) -> Outcome:
    """For each graph input, try its consumers in float; keep them in float if the SQNR gains more than GAIN_DB."""
    units = build_problem(variant.model, workbench.table).units
    decisions = []
    for name in [str(value.name) for value in variant.model.graph.inputs]:
        pin = Pin(FP32, Reason.MEASURED, f"kept {CRITERION}")
        consumers = [unit.name for unit in units if any(operand.name == name for operand in unit.operands)]
        in_float = pinned(Pins(units=dict.fromkeys(consumers, pin), groups={name: pin}))(variant)
        quantized_db, float_db = workbench.worst_db(variant, SAMPLES), workbench.worst_db(in_float, SAMPLES)
        is_better = float_db - quantized_db > GAIN_DB
        decisions.append(_decision(workbench, name, quantized_db, float_db, is_better))
        variant = in_float if is_better else variant
    return variant, tuple(decisions)


FIRST_LAYER = Knob(NAME, decide)


def _decision(workbench: Workbench, name: str, quantized_db: float, float_db: float, is_better: bool) -> Decision:
    return Decision(
        knob=NAME,
        place=Place(PlaceKind.TENSOR, tensor=name),
        taken="float" if is_better else "quantized",
        alternatives=(
            Alternative("quantized", {"simulation_sqnr_db": quantized_db}),
            Alternative("float", {"simulation_sqnr_db": float_db}),
        ),
        rule=CRITERION,
        reason=f"float gains {float_db - quantized_db:.1f} dB at the worst output",
        samples=len(workbench.samples(SAMPLES)),
    )
