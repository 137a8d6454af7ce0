"""In-place edits of a graph that keep names, shapes and origins: the only way in which passes change a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import origin

_NAMES = "dovetail.names"


def constant_of(value: ir.Value | None) -> Array | None:
    """The array of an initializer or of a Constant node, or None if the value is not a constant."""
    if value is None or value.is_graph_input():
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    node = value.producer()
    return _constant_node(node) if node is not None and is_op(node, "Constant") else None


def _constant_node(node: ir.Node) -> Array | None:
    """The array of a numeric Constant node; onnx_ir's own function would rename the node's tensor."""
    name, attr = next(iter(node.attributes.items()), ("", None))
    if attr is None or attr.is_ref() or "string" in name or "sparse" in name:
        return None
    if name == "value":
        return attr.as_tensor().numpy()
    return np.array(attr.value, dtype=np.float32 if "float" in name else np.int64)


def scalar_of(value: ir.Value | None) -> float | None:
    """The value of a constant with one element, else None."""
    array = constant_of(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Whether the node is one of these operators in the ONNX domain."""
    return node is not None and node.domain in ("", "ai.onnx") and node.op_type in op_types


def shape_of(value: ir.Value | None) -> tuple[int, ...] | None:
    """The static shape, or None if any dimension is unknown."""
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return value.shape.numpy()


def sole_consumer(value: ir.Value) -> ir.Node | None:
    """The node that is the only use of the value; None if it has several uses or is a graph output."""
    uses = value.uses()
    return next(iter(uses))[0] if len(uses) == 1 and not value.is_graph_output() else None


def graph_of(node: ir.Node) -> ir.Graph:
    """The graph that a node belongs to."""
    if not isinstance(node.graph, ir.Graph):
        raise TypeError(f"node {node.name!r} does not belong to a graph")
    return node.graph


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """An attribute's value, or the default if it is absent."""
    attr = node.attributes.get(name)
    return default if attr is None else attr.value


def add_initializer(graph: ir.Graph, array: Array, *, name: str, source: ir.Value) -> ir.Value:
    """Register a new constant under an unused name, derived from ``source``."""
    unused = free_name(graph, name)
    # A copy, so that no view holds a mapped weight file open; ascontiguousarray would make a scalar rank 1.
    tensor = ir.Tensor(np.array(array, order="C"), name=unused)
    value = ir.Value(name=unused, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=tensor.shape)
    graph.register_initializer(value)
    origin.derive(value, source)
    return value


def fold(value: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Replace a node's output by a constant with the same name and origin; the node becomes dead."""
    graph = value.graph
    if not isinstance(graph, ir.Graph):
        raise TypeError(f"{value.name!r} does not belong to a graph")
    name, value.name = str(value.name), f"{value.name}/folded"
    shape = ir.Shape(tensor.shape.numpy())
    constant = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=shape)
    graph.register_initializer(constant)
    origin.carry(constant, value)
    value.replace_all_uses_with(constant)


def insert(
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    *,
    attributes: dict[str, Any] | None = None,
    source: ir.Value,
    replaces: Iterable[ir.Node],
    name: str = "",
    shape: Sequence[int] | None = None,
    dtype: ir.DataType | None = None,
    domain: str = "",
) -> ir.Value:
    """Insert a one-output node before another and return its output, derived from ``source``."""
    graph = graph_of(before)
    stem = free_name(graph, name or f"{source.name}/{op_type}")
    node = ir.node(op_type, inputs=inputs, attributes=attributes or {}, domain=domain, name=stem)
    output = node.outputs[0]
    output.name = stem
    element = source.dtype if dtype is None else dtype
    output.type = None if element is None else ir.TensorType(element)
    output.shape = None if shape is None else ir.Shape(shape)
    graph.insert_before(before, node)
    origin.derive(output, source)
    origin.record_replaced(node, replaces)
    return output


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Replace ``old`` in all consumers by the equal value ``new``, which takes over its name, type, shape and origin.

    If ``new`` already has an original tensor of its own (an input, an initializer, a value of the original graph), it
    keeps its name. Names of graph outputs never change: an inner value takes the name of the output; an input, an
    initializer or another output is connected through an Identity.
    """
    fixed = new.producer() is None or new.is_graph_output()
    keeps_name = fixed or (origin.origin_of(new).exact and not old.is_graph_output())
    if old.is_graph_output() and keeps_name:
        producer = old.producer()
        if producer is None:
            raise ValueError(f"{old.name!r} is a graph input and cannot be replaced")
        new = insert(producer, "Identity", [new], source=old, replaces=[producer])
        keeps_name = False
    if not keeps_name:
        if origin.origin_of(new).exact:
            origin.add_alias(old, new)
        name, old.name = old.name, f"{old.name}/replaced"
        new.name = name
        origin.carry(new, old)
    else:
        origin.add_alias(new, old)
    new.type = old.type if new.type is None else new.type
    new.shape = old.shape if new.shape is None else new.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def remove_dead(graph: ir.Graph, nodes: Iterable[ir.Node]) -> None:
    """Remove the given nodes that have no consumers, then their producers that have no consumers left."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node.graph is not graph or any(v.uses() or v.is_graph_output() for v in node.outputs):
            continue
        producers = [v.producer() for v in node.inputs if v is not None]
        graph.remove(node, safe=True)
        pending.extend(producer for producer in producers if producer is not None)


def free_name(graph: ir.Graph, preferred: str) -> str:
    """``preferred``, or ``preferred.1``, ``preferred.2`` ... if it is in use; the result is then in use."""
    taken: set[str] | None = graph.meta.get(_NAMES)
    if taken is None:
        taken = {v.name or "" for v in (*graph.inputs, *graph.initializers.values())}
        for node in graph.all_nodes():
            taken.add(node.name or "")
            taken.update(v.name or "" for v in node.outputs)
        graph.meta[_NAMES] = taken
    name, number = preferred, 0
    while name in taken:
        number += 1
        name = f"{preferred}.{number}"
    taken.add(name)
    return name


def is_float(value: ir.Value) -> bool:
    """Whether the value is a floating-point tensor."""
    return value.dtype is not None and value.dtype.is_floating_point()


def insert_copy(before: ir.Node, node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Value:
    """Insert a copy of a one-output node that has other inputs of the same shapes."""
    return insert(
        before,
        node.op_type,
        inputs,
        attributes=dict(node.attributes),
        source=node.outputs[0],
        replaces=[node],
        shape=shape_of(node.outputs[0]),
        domain=node.domain,
    )


def insert_split(
    before: ir.Node, source: ir.Value, sizes: Sequence[int], *, replaces: Iterable[ir.Node]
) -> tuple[ir.Value, ...]:
    """Insert a Split of the last axis into these sizes and return its outputs, derived from ``source``."""
    graph = graph_of(before)
    stem = free_name(graph, f"{source.name}/Split")
    lengths = add_initializer(graph, np.array(sizes, dtype=np.int64), name=f"{stem}/sizes", source=source)
    node = ir.node("Split", inputs=[source, lengths], attributes={"axis": -1}, num_outputs=len(sizes), name=stem)
    shape = shape_of(source)
    for number, (output, size) in enumerate(zip(node.outputs, sizes, strict=True)):
        output.name = free_name(graph, f"{stem}/{number}")
        output.type = source.type
        output.shape = None if shape is None else ir.Shape((*shape[:-1], size))
        origin.derive(output, source)
    graph.insert_before(before, node)
    origin.record_replaced(node, replaces)
    return tuple(node.outputs)


def forget_names(graph: ir.Graph) -> None:
    """Drop the cached set of names in use, which a clone shares with its original; it is built again when needed."""
    graph.meta.pop(_NAMES, None)


def reduced_axes(node: ir.Node) -> tuple[int, ...] | None:
    """The axes that a reduction names, non-negative and sorted; None if they are left out or not known."""
    axes = constant_of(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "axes", None)
    if axes is None or node.inputs[0] is None or node.inputs[0].shape is None:
        return None
    rank = len(node.inputs[0].shape)
    return tuple(sorted(int(axis) % rank for axis in axes))


def why_weight_not_matrix(node: ir.Node) -> str:
    """Why the second operand does not have rank 2, as per-channel weights of a MatMul must; empty if it has."""
    shape = shape_of(node.inputs[1])
    return "" if shape is not None and len(shape) == 2 else "its weight is not a matrix"


def why_not_pointwise(node: ir.Node) -> str:
    """Why a convolution is not one of 1 x 1 without groups, as block-quantized weights require; empty if it is."""
    shape = shape_of(node.inputs[1])
    if shape is None or len(shape) != 4 or shape[2:] != (1, 1):
        return "only convolutions of 1 x 1 have block-quantized weights"
    return "" if attribute(node, "group", 1) == 1 else "convolutions with groups have no block-quantized weights"


def input_axis(node: ir.Node, rank: int) -> int:
    """The axis of the input channels of a weight (the second operand), along which its blocks are."""
    if node.op_type == "Conv":
        return 1
    if node.op_type == "ConvTranspose":
        return 0
    if node.op_type == "Gemm":
        return 1 if attribute(node, "transB", 0) else 0
    return max(rank - 2, 0)
