"""What the caller pinned with ``--keep GLOB=PRECISION``, matched against original tensor and node names."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.errors import InputError
from dovetail.model.origin import inside_of, nodes_of, origin_of
from dovetail.plan.constraints import Problem, Unit
from dovetail.plan.request import Keep


@dataclass(frozen=True, slots=True)
class Pins:
    """The requests resolved on one graph: by value name, and by unit name.

    ``named``: the values that were named themselves, and so must reach their readers as they are stored; what a pinned
    unit writes may be converted for its readers.
    """

    tensors: Mapping[str, Keep]
    units: Mapping[str, Keep]
    named: frozenset[str] = frozenset()


def resolve(problem: Problem, keeps: Sequence[Keep]) -> Pins:
    """Match every request; one that matches nothing is an error, because a typo must not be silent."""
    tensors: dict[str, Keep] = {}
    units: dict[str, Keep] = {}
    named: set[str] = set()
    for keep in keeps:
        values = [*problem.inputs, *(v for unit in problem.units for v in unit.outputs)]
        hit_values = [v.name or "" for v in values if _matches(keep, (*origin_of(v).names, v.name))]
        hit_units = [unit for unit in problem.units if _matches(keep, _names(unit))]
        if not hit_values and not hit_units:
            raise InputError(f"{keep.text}: no tensor and no node has a name that matches {keep.pattern!r}")
        tensors.update(dict.fromkeys(hit_values, keep))
        named.update(hit_values)
        for unit in hit_units:
            units[unit.name] = keep
            tensors.update({v.name or "": keep for v in unit.outputs})
    return Pins(tensors, units, frozenset(named))


def _names(unit: Unit) -> Sequence[str | None]:
    """What a unit answers to: its nodes, the original nodes they stand for, the tensors inside it, its constants."""
    inside = [v for node in unit.nodes[:-1] for v in node.outputs]
    constants = [operand.value for operand in unit.operands if operand.constant]
    tensors = [name for v in (*inside, *constants) for name in (*origin_of(v).names, v.name)]
    nodes = [name for node in unit.nodes for name in (*nodes_of(node), *inside_of(node), node.name)]
    return [*nodes, *tensors]


def _matches(keep: Keep, names: Sequence[str | None]) -> bool:
    return any(fnmatch.fnmatchcase(name, keep.pattern) for name in names if name)
