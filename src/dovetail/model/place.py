"""Places of a graph, in the names of the caller's file."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.finding import Place, PlaceKind
from dovetail.model.attention import Attention
from dovetail.model.origin import nodes_of, origin_of


def at_node(node: ir.Node, edge: Edge | None = None) -> Place:
    """A node; with the ``edge`` that is meant, where it is about one of its inputs."""
    tensor = origin_of(node.outputs[0]).name if node.outputs else ""
    return Place(PlaceKind.NODE, nodes_of(node), tensor, node.op_type, edge)


def at_tensor(value: ir.Value) -> Place:
    """A tensor, with what writes it."""
    producer = value.producer()
    nodes, op_type = ((), "") if producer is None else (nodes_of(producer), producer.op_type)
    return Place(PlaceKind.TENSOR, nodes, origin_of(value).name, op_type)


def at_attention(attention: Attention) -> Place:
    """An attention: the tensor that it writes, and the nodes of its two products and its softmax."""
    parts = (attention.scores, attention.softmax, attention.mix)
    nodes = dict.fromkeys(name for node in parts for name in nodes_of(node))
    return replace(at_tensor(attention.mix.outputs[0]), nodes=tuple(nodes), op_type="Attention")


def at_edge(node: ir.Node, index: int) -> Place:
    """One input of a node."""
    value = node.inputs[index]
    tensor = "" if value is None else origin_of(value).name
    return Place(PlaceKind.EDGE, nodes_of(node), tensor, node.op_type, Edge(node.name or "", index))
