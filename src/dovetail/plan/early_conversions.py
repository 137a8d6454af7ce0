"""Quantize a float tensor before an operator that moves data, not after it, where the backend does so anyway.

A float kernel writes x, a Reshape moves it, and integer kernels read the result: the backend moves the QuantizeLinear
from after the Reshape to before it (``OpSupport.quantized_early``), so a plan with a float Reshape would not be
what runs. The values are the same either way.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.edge import Edge
from dovetail.plan.constraints import Operand, Problem, Unit
from dovetail.plan.request import Pins
from dovetail.plan.solve import Solution


def early_conversions(problem: Problem, solution: Solution, pins: Pins) -> dict[Edge, str]:
    """The edges on which float tensors are quantized before operators that move data; with the reason."""
    moved = _Moved(problem, solution, pins)
    conversions: dict[Edge, str] = {}
    for unit in problem.units:
        for operand in moved.quantized_inputs(unit):
            producer = problem.producer.get(operand.name)
            if producer is None or not moved.is_early(producer):
                conversions[operand.edge] = f"quantized before {unit.label}, because everything after it reads integers"
    return conversions


class _Moved:
    """The operators that move float tensors of which only integers are read."""

    def __init__(self, problem: Problem, solution: Solution, pins: Pins) -> None:
        self._problem, self._solution = problem, solution
        self._outputs = {value.name for value in problem.outputs}
        self._early: set[str] = set()
        for unit in reversed(problem.units):  # consumers first
            if self._can_be_early(unit, pins) and all(self._read_as_integers(v.name or "") for v in unit.outputs):
                self._early.add(unit.name)

    def is_early(self, unit: Unit) -> bool:
        """Whether this operator moves integers once the conversion is before it."""
        return unit.name in self._early

    def quantized_inputs(self, unit: Unit) -> Iterator[Operand]:
        """The inputs of such an operator that are float now."""
        if self.is_early(unit):
            yield from (operand for operand in unit.shared() if not operand.constant)

    def _can_be_early(self, unit: Unit, pins: Pins) -> bool:
        """Whether the backend moves a QuantizeLinear before this operator, and it is not kept in float."""
        if unit.support is None or not unit.support.quantized_early or unit.name in pins.units:
            return False
        names = [value.name or "" for value in unit.outputs]
        return all(self._is_float(name) and name not in pins.groups for name in names)

    def _is_float(self, name: str) -> bool:
        return self._solution.groups[self._problem.group_of[name]].is_float

    def _read_as_integers(self, name: str) -> bool:
        """Whether a float tensor has consumers, and all of them quantize it."""
        readers = self._problem.readers.get(name, ())
        if not readers or name in self._outputs:
            return False
        return all(self._quantizes(unit, o) for unit in readers for o in unit.operands if o.name == name)

    def _quantizes(self, unit: Unit, operand: Operand) -> bool:
        if operand in unit.shared():
            outputs = [value.name or "" for value in unit.outputs]
            return self.is_early(unit) or not any(self._is_float(output) for output in outputs)
        slot = self._solution.signatures[unit.name].slot(operand.slot)
        return slot is not None and slot.encoding.dtype.is_quantized
