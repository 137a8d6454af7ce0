"""The pins of groups: of a tensor, or of the operator that writes it."""

from __future__ import annotations

from dovetail.op_support import Precision
from dovetail.plan.constraints import Problem, Unit
from dovetail.plan.request import Pin, Pins


def pinned_tensors(problem: Problem, pins: Pins) -> dict[str, Pin]:
    """The pin of each group that has a pinned tensor, by the group's representative."""
    pinned: dict[str, Pin] = {}
    for root, members in problem.groups.items():
        if (pin := next((pins.groups[name] for name in members if name in pins.groups), None)) is not None:
            pinned[root] = pin
    return pinned


def pinned_groups(problem: Problem, pins: Pins) -> dict[str, Pin]:
    """The pin of each group that has one: that of a tensor, else that of the first operator that writes it."""
    pinned: dict[str, Pin] = {}
    for unit in problem.units:
        for value in unit.outputs:
            if unit.name in pins.units:
                pinned.setdefault(problem.group_of[value.name or ""], pins.units[unit.name])
    return pinned | pinned_tensors(problem, pins)


def pinned_otherwise(problem: Problem, pins: Pins, precision: Precision) -> frozenset[str]:
    """The operators that must not be changed to a precision: they, or a tensor that they read or write, have another.

    Consumers read a pinned tensor without a conversion.
    """
    tensors = {root for root, pin in pinned_tensors(problem, pins).items() if pin.precision != precision}
    units = {name for name, pin in pins.units.items() if pin.precision != precision}
    return frozenset(units | {unit.name for unit in problem.units if not tensors.isdisjoint(_groups(problem, unit))})


def _groups(problem: Problem, unit: Unit) -> set[str]:
    """The groups of the tensors that an operator reads and writes."""
    names = [*(o.name for o in unit.operands if not o.constant), *(value.name or "" for value in unit.outputs)]
    return {problem.group_of[name] for name in names}
