"""Whether an output that is put together from unlike parts, and what is computed for it, has wider activations.

A detector often has one output with boxes in pixels beside scores from 0 to 1. With one scale for both, 8 bits leave
two values of the scores, and the SQNR of the whole output, which the boxes dominate, does not show it. So each part is
judged on its own: if the worst one gains more than ``GAIN_DB``, the arithmetic between the last layers and the output
(box decoding) has wider activations.

The SQNR of a part is that of its largest errors, and most boxes of a detector are of nothing, and are inaccurate
whatever the arithmetic does. What it does to accurate ones is the first quartile of the errors: it is judged, too,
but not of parts between -1 and 1, where it would be that of the scores of nothing.
YOLOv8n in w8a8 on the CPU: 0.8 dB more SQNR of the boxes, a first quartile of 0.33 pixels instead of 0.60, and 98 % of
the boxes with an IoU of 0.9 instead of 82 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.encoding import Array
from dovetail.model.edit import attribute, is_op, shape_of
from dovetail.model.place import at_node
from dovetail.model.ranked import ranked_outputs
from dovetail.op_support import OpTable, Precision
from dovetail.plan.constraints import Operand, Problem, Unit, build_problem
from dovetail.plan.pinned_groups import pinned_otherwise
from dovetail.plan.request import Pin, Pins
from dovetail.storage import Reason
from dovetail.trials.agreement_db import worst_db
from dovetail.trials.decision import Alternative, Decision
from dovetail.trials.knob import Knob, Outcome
from dovetail.trials.variant import Variant, pinned
from dovetail.trials.workbench import Workbench

NAME = "outputs"
GAIN_DB = 3.0
SAMPLES = 16
_QUARTILE, _LARGEST_SCORE = 0.25, 1.0
_MOST_LOST_DB = 1.0
CRITERION = (
    f"wider, if in simulation the worst part of the output gains more than {GAIN_DB:g} dB, or the first quartile of "
    "the errors of a part with values beyond 1 falls by more than that and the worst part loses at most "
    f"{_MOST_LOST_DB:g} dB"
)
# Not Sigmoid or Softmax: their outputs are between 0 and 1, where 8 bits are enough. YOLOv8n in w8a8 by the vendor's
# estimate (soc 52): 452 us; 583 with the arithmetic in 16 bits; 851 with all operators after the last layers.
_ARITHMETIC = ("Add", "Div", "Exp", "Mul", "Pow", "Sub")


@dataclass(frozen=True, slots=True)
class OutputParts:
    """An output as the parts that a Concat puts together: ``y`` -> ``y[0]``, ``y[1]``, ..."""

    name: str
    axis: int
    sizes: tuple[int, ...]

    def __call__(self, outputs: Sample) -> Sample:
        parts = np.split(outputs[self.name], tuple(accumulate(self.sizes))[:-1], axis=self.axis)
        return {f"{self.name}[{number}]": part for number, part in enumerate(parts)}


@dataclass(frozen=True, slots=True)
class PartErrors:
    """Of the parts of an output in simulation: the SQNR of the worst one, and the first quartile of the errors of those
    with values beyond 1."""

    worst_db: float
    quartiles: Mapping[str, float]


def decide(workbench: Workbench, variant: Variant) -> Outcome:
    """Pin what is computed for every such output to wider activations, where that gains enough."""
    wide = wider_activations(workbench.table, variant.request.precision)
    if wide is None or not workbench.samples(SAMPLES):
        return variant, ()
    problem = build_problem(variant.model, workbench.table)
    ranked = ranked_outputs(variant.model.graph)
    pinned_units = pinned_otherwise(problem, variant.request.pins, wide)
    decisions = []
    for value in problem.outputs:
        parts = None if value.name in ranked else parts_of(value)
        units = [] if parts is None else decoding(problem, parts.name)
        if parts is None or not units or any(unit.name in pinned_units for unit in units):
            continue
        text = f"{wide.name}: 8 bits between the last layers and {parts.name!r} cost a part more than {GAIN_DB:g} dB"
        pin = Pin(wide, Reason.MEASURED, text)
        widened = pinned(Pins({unit.name: pin for unit in units}))(variant)
        narrow, wider = (_measured(workbench, each, parts) for each in (variant, widened))
        labels = (variant.request.precision.name, wide.name)
        decision = _decision(workbench, value, labels, narrow, wider)
        decisions.append(decision)
        variant = widened if decision.taken == wide.name else variant
    return variant, tuple(decisions)


WIDE_OUTPUTS = Knob(NAME, decide)


def wider_activations(table: OpTable, precision: Precision) -> Precision | None:
    """The precision with the same weights and 16-bit activations, if 8-bit ones are requested."""
    wider = (
        other
        for other in table.precisions.values()
        if other.weight == precision.weight
        and other.activation.dtype.is_integer
        and other.activation.dtype.bits > precision.activation.dtype.bits
    )
    return next(wider, None) if precision.activation.dtype.is_integer else None


def parts_of(value: ir.Value) -> OutputParts | None:
    """The parts of an output that a Concat of several tensors writes; None for any other."""
    node, shape = value.producer(), shape_of(value)
    if node is None or shape is None or not is_op(node, "Concat") or len(node.inputs) < 2:
        return None
    axis = int(attribute(node, "axis", 0)) % len(shape)
    sizes = tuple((shape_of(part) or (0,) * len(shape))[axis] for part in node.inputs)
    return OutputParts(value.name or "", axis, sizes) if sum(sizes) == shape[axis] else None


def decoding(problem: Problem, output: str) -> list[Unit]:
    """The arithmetic between the last layers or activation functions and an output, in graph order.

    Not operators whose results are also used elsewhere, and not those that only move what was given to them: this has
    8 bits in any case.
    """
    names, waiting = set[str](), [output]
    while waiting:
        unit = problem.producer.get(waiting.pop())
        if unit is not None and unit.name not in names and (_moved(unit) or is_op(unit.nodes[0], *_ARITHMETIC)):
            names.add(unit.name)
            waiting += [operand.name for operand in unit.operands if not operand.constant]
    for unit in reversed(problem.units):  # consumers first
        readers = problem.readers_of(value.name or "" for value in unit.outputs)
        if any(reader.name not in names for reader in readers):
            names.discard(unit.name)
    joined = problem.producer[output].name
    for unit in problem.units:  # producers first
        sources = [problem.producer.get(operand.name) for operand in _moved(unit) if not operand.constant]
        if sources and unit.name != joined and all(source is None or source.name not in names for source in sources):
            names.discard(unit.name)
    return [unit for unit in problem.units if unit.name in names]


def _moved(unit: Unit) -> tuple[Operand, ...]:
    """The inputs whose elements an operator only moves; a Concat does so, whether or not its inputs share a scale."""
    return unit.operands if is_op(unit.nodes[0], "Concat") else tuple(unit.shared())


def _measured(workbench: Workbench, variant: Variant, parts: OutputParts) -> PartErrors:
    graphs = variant.model, workbench.simulated_graph(variant)
    runs = (map(dict, workbench.observe(graph, [parts.name], SAMPLES)) for graph in graphs)
    errors: dict[str, list[Array]] = {}
    largest: dict[str, float] = {}
    for exact, simulated in zip(*runs, strict=True):
        others = parts(simulated)
        for name, array in parts(exact).items():
            errors.setdefault(name, []).append(np.abs(array - others[name]))
            largest[name] = max(largest.get(name, 0.0), float(np.abs(array).max()))
    judged = {name: each for name, each in errors.items() if largest[name] > _LARGEST_SCORE}
    quartiles = {name: float(np.quantile(np.stack(each), _QUARTILE)) for name, each in judged.items()}
    return PartErrors(worst_db(workbench.compare(variant, SAMPLES, view=parts)), quartiles)


def ratio_db(narrow: float, wide: float) -> float:
    """By how many dB an error falls."""
    return 20 * float(np.log10(narrow / wide)) if narrow > 0 < wide else (math.inf if narrow > wide else 0.0)


def _decision(
    workbench: Workbench, value: ir.Value, labels: Sequence[str], narrow: PartErrors, wide: PartErrors
) -> Decision:
    node = value.producer()
    if node is None:
        raise TypeError(f"{value.name!r} has no producer")
    gain_db = wide.worst_db - narrow.worst_db
    falls_db = {name: ratio_db(error, wide.quartiles[name]) for name, error in narrow.quartiles.items()}
    part = max(falls_db, key=falls_db.__getitem__, default="")
    is_better = gain_db > GAIN_DB or (falls_db.get(part, 0.0) > GAIN_DB and gain_db >= -_MOST_LOST_DB)
    reason = f"{labels[1]} after the last layers gains the worst part of the output {gain_db:.1f} dB"
    if part:
        errors = narrow.quartiles[part], wide.quartiles[part]
        reason += f"; the first quartile of the errors of {part!r} is {errors[1]:.3g} instead of {errors[0]:.3g}"
    return Decision(
        knob=NAME,
        place=at_node(node),
        taken=labels[is_better],
        alternatives=tuple(
            Alternative(label, _figures(each, part)) for label, each in zip(labels, (narrow, wide), strict=True)
        ),
        rule=CRITERION,
        reason=reason,
        samples=len(workbench.samples(SAMPLES)),
    )


def _figures(errors: PartErrors, part: str) -> dict[str, float]:
    quartile = {"first_quartile_error": errors.quartiles[part]} if part else {}
    return {"worst_part_sqnr_db": errors.worst_db, **quartile}
