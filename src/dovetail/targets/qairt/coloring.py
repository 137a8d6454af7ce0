"""Which operators of a plan compute in float and which in integers, and the islands that the float ones form."""

from __future__ import annotations

from enum import StrEnum

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.model.edit import constant_of, is_float
from dovetail.storage import Choice, Plan, Reason


class Domain(StrEnum):
    """What an operator computes in; shapes and indices are neither."""

    INTEGER = "integer"
    FLOAT = "float"
    NEITHER = "neither"


def domains(model: ir.Model, plan: Plan) -> dict[str, Domain]:
    """What every node of the planned graph computes in, by name, in graph order."""
    found: dict[str, Domain] = {}
    producers = {str(v.name): str(node.name) for node in model.graph for v in node.outputs}
    for node in model.graph:
        found[str(node.name)] = _domain(node, plan, producers, found)
    return found


def _domain(node: ir.Node, plan: Plan, producers: dict[str, str], found: dict[str, Domain]) -> Domain:
    """Integer if every float tensor that it reads and writes is quantized; in a fused operator, that of the first."""
    seen = []
    for index, value in enumerate(node.inputs):
        if value is None or not is_float(value) or constant_of(value) is not None:
            continue
        own = plan.tensors.get(str(value.name))
        if own is not None and own.why is Reason.INTERIOR:
            seen.append(found.get(producers.get(str(value.name), ""), Domain.INTEGER))
            continue
        choice = plan.edges.get(Edge(str(node.name), index), own)
        quantized = choice is not None and isinstance(choice.storage, QParams)
        seen.append(Domain.INTEGER if quantized else Domain.FLOAT)
    if not seen:
        return Domain.NEITHER
    written = (plan.tensors.get(str(value.name)) for value in node.outputs if is_float(value))
    in_float = any(choice is not None and _is_float_result(choice) for choice in written)
    return Domain.FLOAT if in_float or Domain.FLOAT in seen else Domain.INTEGER


def _is_float_result(choice: Choice) -> bool:
    """Whether an operator that writes this computes in float; an integer one may write a float output of the graph."""
    return not isinstance(choice.storage, QParams) and choice.why not in (Reason.INTERIOR, Reason.OUTPUT)


def islands(model: ir.Model, plan: Plan) -> tuple[tuple[str, ...], ...]:
    """The groups of float operators that are connected with each other, each by the names of its nodes."""
    of_node = domains(model, plan)
    root: dict[str, str] = {name: name for name, domain in of_node.items() if domain is Domain.FLOAT}

    def find(name: str) -> str:
        while root[name] != name:
            name = root[name]
        return name

    for node in model.graph:
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is not None and str(producer.name) in root and str(node.name) in root:
                root[find(str(node.name))] = find(str(producer.name))
    groups: dict[str, list[str]] = {}
    for name in root:
        groups.setdefault(find(name), []).append(name)
    return tuple(tuple(group) for group in groups.values())


def boundaries(model: ir.Model, plan: Plan) -> int:
    """How many tensors go from a float operator to an integer one, or the other way."""
    of_node = domains(model, plan)
    crossing = {
        str(value.name)
        for node in model.graph
        for value in node.inputs
        if value is not None
        and (producer := value.producer()) is not None
        and {of_node[str(node.name)], of_node[str(producer.name)]} == {Domain.FLOAT, Domain.INTEGER}
    }
    return len(crossing)
