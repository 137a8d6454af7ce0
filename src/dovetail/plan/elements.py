"""The elements of a plan: what is quantized, or kept in float, as one; so that the cost of each can be measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.finding import Place
from dovetail.model.place import at_node, at_tensor
from dovetail.plan.constraints import Problem, Unit
from dovetail.storage import Choice, Plan


class ElementKind(StrEnum):
    """``weights``: the constants of one operator, with its bias. ``activations``: tensors that share one scale."""

    WEIGHTS = "weights"
    ACTIVATIONS = "activations"


@dataclass(frozen=True, slots=True)
class Element:
    """The constants of one operator, or the tensors of one group with the conversions on the edges that read them.

    ``unit``: the operator that reads the constants, or that writes the first of the tensors; empty for a graph input.
    """

    kind: ElementKind
    unit: str
    place: Place
    tensors: tuple[str, ...] = ()
    edges: tuple[Edge, ...] = ()


def elements_of(problem: Problem, plan: Plan) -> tuple[Element, ...]:
    """Everything that a plan quantizes: graph inputs first, then in graph order."""
    groups: dict[str, Element] = {}
    for unit, value in _values(problem):
        name = value.name or ""
        root = _root(problem, plan, name)
        if _is_quantized(plan.tensors.get(name)):
            first = groups.setdefault(root, _activation(unit, value))
            groups[root] = replace(first, tensors=(*first.tensors, name))
    weights: dict[str, Element] = {}
    for unit in problem.units:
        for operand in unit.operands:
            if not _is_quantized(plan.edges.get(operand.edge)):
                continue
            if operand.constant:
                first = weights.setdefault(unit.name, Element(ElementKind.WEIGHTS, unit.name, at_node(unit.nodes[0])))
                weights[unit.name] = replace(first, edges=(*first.edges, operand.edge))
            else:
                root = _root(problem, plan, operand.name)
                first = groups.setdefault(root, _activation(problem.producer.get(operand.name), operand.value))
                groups[root] = replace(first, edges=(*first.edges, operand.edge))
    order = {unit.name: index for index, unit in enumerate(problem.units)}
    return tuple(sorted((*weights.values(), *groups.values()), key=lambda element: order.get(element.unit, -1)))


@dataclass(frozen=True, slots=True)
class UnitElements:
    """Elements as small as the precision of single operators decides, with their places in the graph.

    ``groups``: number of an element -> the tensors of one group, without the conversions on edges. ``edges``: operator
    -> the numbers of the quantized constants and conversions on its inputs.
    """

    elements: tuple[Element, ...]
    groups: Mapping[int, tuple[str, ...]]
    edges: Mapping[str, frozenset[int]]


def unit_elements(problem: Problem, plan: Plan) -> UnitElements:
    """The elements of a plan, each small enough to belong to one operator, or to the operators around one group."""
    elements = [replace(element, edges=()) for element in elements_of(problem, plan) if element.tensors]
    groups = {number: element.tensors for number, element in enumerate(elements)}
    edges: dict[str, frozenset[int]] = {}
    for unit in problem.units:
        numbers = []
        for operand in unit.operands:
            if _is_quantized(plan.edges.get(operand.edge)):
                kind = ElementKind.WEIGHTS if operand.constant else ElementKind.ACTIVATIONS
                numbers.append(len(elements))
                elements.append(Element(kind, unit.name, at_node(unit.nodes[0]), edges=(operand.edge,)))
        edges[unit.name] = frozenset(numbers)
    return UnitElements(tuple(elements), groups, edges)


def only(plan: Plan, elements: Iterable[Element]) -> Plan:
    """The plan with nothing quantized but these elements."""
    tensors = {name for element in elements for name in element.tensors}
    edges = {edge for element in elements for edge in element.edges}
    return replace(
        plan,
        tensors={name: choice for name, choice in plan.tensors.items() if name in tensors},
        edges={edge: choice for edge, choice in plan.edges.items() if edge in edges},
        stored={edge: integers for edge, integers in plan.stored.items() if edge in edges},
    )


def _values(problem: Problem) -> Iterator[tuple[Unit | None, ir.Value]]:
    """Every value that can be quantized, with its producer, in graph order."""
    yield from ((None, value) for value in problem.inputs)
    yield from ((unit, value) for unit in problem.units for node in unit.nodes for value in node.outputs)


def _root(problem: Problem, plan: Plan, name: str) -> str:
    """What identifies the tensors that are quantized together with this one."""
    inside = problem.interior.get(name)
    if inside is not None:  # between operators that are not fused: it has the scale of their result
        name = inside.outputs[0].name or ""
    choice = plan.tensors.get(name)
    return name if choice is None or choice.group is None else choice.group


def _activation(unit: Unit | None, value: ir.Value) -> Element:
    return Element(ElementKind.ACTIVATIONS, "" if unit is None else unit.name, at_tensor(value))


def _is_quantized(choice: Choice | None) -> bool:
    return choice is not None and isinstance(choice.storage, QParams)
