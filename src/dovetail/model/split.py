"""Split a model before the nodes that a target cannot run: the head is fitted, the tail is a separate model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.convenience import extract

from dovetail.errors import InputError
from dovetail.model.edit import is_op
from dovetail.model.origin import nodes_of, origin_of

# A head without one of these operators has nothing that a target would accelerate.
_WORK = ("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class TailNode:
    """A node of the tail, by its original name, and why; ``after`` if it only depends on an unsupported node."""

    name: str
    op: str
    reason: str
    behind: bool = False


@dataclass(frozen=True, slots=True)
class BoundaryTensor:
    """An input of the tail, from the head or, if it is an input of the model, from the caller."""

    tensor: str
    original_name: str


@dataclass(frozen=True, slots=True)
class SplitPoint:
    """Where a model was split: the nodes of the tail, and the tensors that the tail reads."""

    nodes: tuple[TailNode, ...]
    crossing: tuple[BoundaryTensor, ...]


@dataclass(frozen=True, slots=True)
class SplitModel:
    """The head, which is fitted, and, if the model was split, the tail, which computes the model's outputs."""

    head: ir.Model
    tail: ir.Model | None = None
    cut: SplitPoint | None = None


def split(model: ir.Model, outside: Mapping[str, str]) -> SplitModel:
    """Move the unsupported nodes, ``outside`` (operator -> why it cannot run), and all that depend on them to a tail.

    The outputs of the head are the model outputs that it computes, then the other tensors that the tail reads. The
    inputs of the tail are these outputs and the model inputs that it reads; its outputs are all outputs of the model,
    where those of the head are passed through. A model without unsupported nodes is its own head.
    """
    tail = _tail_nodes(model.graph, outside)
    if not tail:
        return SplitModel(model)
    _refuse_empty_head(model.graph, tail)
    written = {value for node in tail for value in node.outputs}
    kept = [value for value in model.graph.outputs if value not in written]
    crossing = list(dict.fromkeys((*kept, *_tail_inputs(tail, written))))
    cut = SplitPoint(
        tuple(
            TailNode(name, node.op_type, reason, not is_op(node, *outside))
            for node, reason in tail.items()
            for name in _names(node)
        ),
        tuple(BoundaryTensor(value.name or "", origin_of(value).name) for value in crossing),
    )
    head = _submodel(model, model.graph.inputs, [value for value in crossing if not value.is_graph_input()])
    return SplitModel(head, _submodel(model, crossing, model.graph.outputs), cut)


def _tail_nodes(graph: ir.Graph, outside: Mapping[str, str]) -> dict[ir.Node, str]:
    """The unsupported nodes and those that depend on one, in graph order, each with the reason."""
    tail: dict[ir.Node, str] = {}
    for node in graph:
        producer = next((v.producer() for v in node.inputs if v is not None and v.producer() in tail), None)
        if is_op(node, *outside):
            tail[node] = outside[node.op_type]
        elif producer is not None:
            tail[node] = f"depends on {_names(producer)[0]}"
    return tail


def _tail_inputs(tail: Iterable[ir.Node], written: set[ir.Value]) -> list[ir.Value]:
    """The tensors that the nodes of the tail read and do not write, without constants."""
    read = dict.fromkeys(value for node in tail for value in node.inputs if value is not None)
    return [value for value in read if value not in written and not value.is_initializer()]


def _refuse_empty_head(graph: ir.Graph, tail: Mapping[ir.Node, str]) -> None:
    if any(is_op(node, *_WORK) for node in graph if node not in tail):
        return
    first, reason = next(iter(tail.items()))
    raise InputError(
        f"node {_names(first)[0]!r} ({first.op_type}) is not supported: {reason}. The model cannot be split before it, "
        "because no Conv or MatMul would be left to fit"
    )


def _names(node: ir.Node) -> tuple[str, ...]:
    return nodes_of(node) or (node.name or "",)


def _submodel(model: ir.Model, inputs: Iterable[ir.Value], outputs: Iterable[ir.Value]) -> ir.Model:
    """The model from these inputs to these outputs; inputs that it does not use are left out."""
    graph = extract(model.graph, list(inputs), list(outputs))
    used = set(_used_values(graph))
    for value in [value for value in graph.inputs if value not in used]:
        graph.inputs.remove(value)
    return ir.Model(graph, ir_version=model.ir_version, metadata_props=dict(model.metadata_props))


def _used_values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.outputs
    for node in graph:
        yield from (value for value in node.inputs if value is not None)
