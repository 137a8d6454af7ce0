"""The pins of groups: of a tensor, or of the operator that writes it."""

from __future__ import annotations

from dovetail.plan.constraints import Problem
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
