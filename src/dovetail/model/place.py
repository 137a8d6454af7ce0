"""Places in a graph, by the names in the user's file."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.finding import Place, PlaceKind
from dovetail.model.attention import Attention
from dovetail.model.origin import nodes_of, origin_of


def at_node(node: ir.Node, edge: Edge | None = None) -> Place:
    """A node; with ``edge`` if the place is one input of it."""
    tensor = origin_of(node.outputs[0]).name if node.outputs else ""
    return Place(PlaceKind.NODE, nodes_of(node), tensor, node.op_type, edge)


def at_tensor(value: ir.Value) -> Place:
    """A tensor, with its producer."""
    producer = value.producer()
    nodes, op_type = ((), "") if producer is None else (nodes_of(producer), producer.op_type)
    return Place(PlaceKind.TENSOR, nodes, origin_of(value).name, op_type)


def at_attention(attention: Attention) -> Place:
    """An attention block: its output tensor, and the nodes of its two MatMuls and its Softmax."""
    main_nodes = (attention.scores, attention.softmax, attention.mix)
    nodes = dict.fromkeys(name for node in main_nodes for name in nodes_of(node))
    return replace(at_tensor(attention.mix.outputs[0]), nodes=tuple(nodes), op_type="Attention")


def at_edge(node: ir.Node, index: int) -> Place:
    """One input of a node."""
    value = node.inputs[index]
    tensor = "" if value is None else origin_of(value).name
    return Place(PlaceKind.EDGE, nodes_of(node), tensor, node.op_type, Edge(node.name or "", index))


def named(node: ir.Node) -> str:
    """A node in a message: its operator and its name in the user's file, or its own name if it is not there."""
    return f"{node.op_type} {next(iter(nodes_of(node)), node.name)!r}"
