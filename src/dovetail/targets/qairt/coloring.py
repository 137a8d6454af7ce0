"""Which operators compute in float and which in integers, as planned or as predicted, and the islands in float."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.model.edit import constant_of, is_float, is_op
from dovetail.storage import Choice, Plan, Reason
from dovetail.targets.qairt.predict import FLOATS, Cause, PredictedTensor


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


def predicted_domains(model: ir.Model, predicted: Mapping[str, PredictedTensor]) -> dict[str, Domain]:
    """What every node is predicted to compute in, by name, in graph order."""
    floats = float_tensors(model, predicted)
    found = {name: Domain.INTEGER if row is None else Domain.FLOAT for name, row in floats.items()}
    return {str(node.name): found.get(str(node.name), Domain.NEITHER) for node in model.graph}


def float_tensors(model: ir.Model, predicted: Mapping[str, PredictedTensor]) -> dict[str, PredictedTensor | None]:
    """A tensor for which each node is predicted to compute in float, None if it computes in integers, by node.

    An operator computes in float if one of its tensors does, and so do those that are fused with it. Constant nodes,
    which the converter makes tensors of, and nodes without a predicted tensor are left out.
    """
    rows = {str(node.name): _rows(node, predicted) for node in model.graph if not is_op(node, "Constant")}
    found = {name: next((row for row in own if row.dtype in FLOATS), None) for name, own in rows.items() if own}
    fused = [
        (str(producer.name), str(node.name))
        for node in model.graph
        for value in node.inputs
        if value is not None
        and (row := predicted.get(str(value.name))) is not None
        and row.cause is Cause.FUSED
        and (producer := value.producer()) is not None
    ]
    for before, after in fused:
        found[after] = found[after] or found[before]
    for before, after in reversed(fused):
        found[before] = found[before] or found[after]
    return found


def _rows(node: ir.Node, predicted: Mapping[str, PredictedTensor]) -> list[PredictedTensor]:
    """What is predicted about the tensors that a node reads and writes."""
    names = [str(value.name) for value in (*node.inputs, *node.outputs) if value is not None]
    return [predicted[name] for name in names if name in predicted]


def islands(model: ir.Model, of_node: Mapping[str, Domain]) -> tuple[tuple[str, ...], ...]:
    """The groups of float operators that are connected with each other, each by the names of its nodes."""
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


def boundaries(model: ir.Model, of_node: Mapping[str, Domain]) -> int:
    """How many tensors go from a float operator to an integer one, or the other way."""
    crossing = {
        str(value.name)
        for node in model.graph
        for value in node.inputs
        if value is not None
        and (producer := value.producer()) is not None
        and {of_node[str(node.name)], of_node[str(producer.name)]} == {Domain.FLOAT, Domain.INTEGER}
    }
    return len(crossing)
