"""Cutting off the end of a graph that a target cannot run: the head is fitted, the tail is a model of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.convenience import extract

from dovetail.errors import InputError
from dovetail.model.edit import is_op
from dovetail.model.origin import nodes_of, origin_of

# A head without one of these has nothing that a target would make faster.
_WORK = ("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class TailNode:
    """A node that was left to the tail, by its original name, and why; ``behind``: it only depends on such a node."""

    name: str
    op: str
    reason: str
    behind: bool = False


@dataclass(frozen=True, slots=True)
class BoundaryTensor:
    """A tensor that goes into the tail, from the head or, when it is an input of the model, from the caller."""

    tensor: str
    original_name: str


@dataclass(frozen=True, slots=True)
class SplitPoint:
    """Where a model was cut: what is behind the cut, and what crosses it."""

    nodes: tuple[TailNode, ...]
    crossing: tuple[BoundaryTensor, ...]


@dataclass(frozen=True, slots=True)
class SplitModel:
    """A model as the head that is fitted and, where something was cut off, the tail that gives the model's outputs."""

    head: ir.Model
    tail: ir.Model | None = None
    cut: SplitPoint | None = None


def split(model: ir.Model, outside: Mapping[str, str]) -> SplitModel:
    """Cut off the nodes that are ``outside`` (operator -> why it cannot run) and all that depends on them.

    The head's outputs are those of the model that it computes, then what the tail reads. The tail takes these, and
    inputs of the model where it reads them, and gives all outputs of the model, those of the head unchanged. Without
    such a node the model itself is the head.
    """
    tail = _tail_nodes(model.graph, outside)
    if not tail:
        return SplitModel(model)
    _refuse_empty_head(model.graph, tail)
    written = {value for node in tail for value in node.outputs}
    kept = [value for value in model.graph.outputs if value not in written]
    crossing = list(dict.fromkeys((*kept, *_read_before(tail, written))))
    cut = SplitPoint(
        tuple(
            TailNode(name, node.op_type, reason, not is_op(node, *outside))
            for node, reason in tail.items()
            for name in _names(node)
        ),
        tuple(BoundaryTensor(value.name or "", origin_of(value).name) for value in crossing),
    )
    head = _part(model, model.graph.inputs, [value for value in crossing if not value.is_graph_input()])
    return SplitModel(head, _part(model, crossing, model.graph.outputs), cut)


def _tail_nodes(graph: ir.Graph, outside: Mapping[str, str]) -> dict[ir.Node, str]:
    """The nodes that are outside, and those that depend on one, in graph order, each with the reason."""
    tail: dict[ir.Node, str] = {}
    for node in graph:
        before = next((v.producer() for v in node.inputs if v is not None and v.producer() in tail), None)
        if is_op(node, *outside):
            tail[node] = outside[node.op_type]
        elif before is not None:
            tail[node] = f"depends on {_names(before)[0]}"
    return tail


def _read_before(tail: Iterable[ir.Node], written: set[ir.Value]) -> list[ir.Value]:
    """What the nodes behind the cut read from before it, constants apart."""
    read = dict.fromkeys(value for node in tail for value in node.inputs if value is not None)
    return [value for value in read if value not in written and not value.is_initializer()]


def _refuse_empty_head(graph: ir.Graph, tail: Mapping[ir.Node, str]) -> None:
    if any(is_op(node, *_WORK) for node in graph if node not in tail):
        return
    first, reason = next(iter(tail.items()))
    raise InputError(
        f"node {_names(first)[0]!r} ({first.op_type}) cannot be cut off with all that depends on it: {reason}, and no "
        "Conv or MatMul is left in front of it to be fitted"
    )


def _names(node: ir.Node) -> tuple[str, ...]:
    return nodes_of(node) or (node.name or "",)


def _part(model: ir.Model, inputs: Iterable[ir.Value], outputs: Iterable[ir.Value]) -> ir.Model:
    """A model of its own from some values to others; inputs that nothing in it reads are left out."""
    graph = extract(model.graph, list(inputs), list(outputs))
    used = set(_read(graph))
    for value in [value for value in graph.inputs if value not in used]:
        graph.inputs.remove(value)
    return ir.Model(graph, ir_version=model.ir_version, metadata_props=dict(model.metadata_props))


def _read(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.outputs
    for node in graph:
        yield from (value for value in node.inputs if value is not None)
