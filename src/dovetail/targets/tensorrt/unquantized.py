"""Remove the Q/DQ pairs of an emitted graph: the float graph to compare with, and which edges were 8 bit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import DType
from dovetail.model.attention import ScalePlace, scale_at
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import constant_of, is_op
from dovetail.model.origin import carry
from dovetail.numerics.affine import dequantize
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.qdq.emit import drop_unused_constants
from dovetail.qdq.params import is_dequantize, is_quantize, qparams_of


@dataclass(frozen=True, slots=True)
class UnquantizedModel:
    """The float graph, and the 8-bit type that each edge had."""

    model: ir.Model
    edges: dict[Edge, DType]


def unquantized(emitted: ir.Model) -> UnquantizedModel:
    """Remove every Q/DQ pair from a copy; quantized constants become float constants."""
    model = emitted.clone()
    infer_shapes(model)  # a file of another tool may have no types
    graph = model.graph
    dequantizes = [node for node in graph if is_dequantize(node)]
    edges = {edge: qparams_of(node).dtype for node in dequantizes for edge in _consumers(node.outputs[0])}
    for node in dequantizes:
        source = node.inputs[0]
        array = constant_of(source)
        producer = None if source is None else source.producer()
        if array is not None:
            _fold(node)
        elif producer is not None and is_quantize(producer) and producer.inputs[0] is not None:
            _bypass(graph, node.outputs[0], producer.inputs[0])
        else:
            continue
        graph.remove(node, safe=True)
    for node in [node for node in graph if is_quantize(node) and not node.outputs[0].uses()]:
        graph.remove(node, safe=True)
    drop_unused_constants(graph)
    return UnquantizedModel(model, edges)


def _consumers(value: ir.Value) -> list[Edge]:
    """The edges that read a value, also after data movement, Cast and scalar Mul (the builder fuses them)."""
    edges: list[Edge] = []
    for node, index in value.uses():
        edges.append(Edge(node.name or "", index))
        scale = scale_at(node, ScalePlace.QUERY)
        if (is_op(node, "Cast", *DATA_MOVEMENT_OPS) and not index) or (scale is not None and scale.data is value):
            edges += [edge for output in node.outputs for edge in _consumers(output)]
    return edges


def _fold(node: ir.Node) -> None:
    """Replace the dequantized constant of a DequantizeLinear by a float constant."""
    output, stored = node.outputs[0], constant_of(node.inputs[0])
    if stored is None or node.graph is None:
        raise ValueError(f"the input of {node.name!r} is not a constant")
    scale = constant_of(node.inputs[1])  # has the type of the output, also below opset 19, where it is not inferred
    dtype = np.float16 if scale is not None and scale.dtype == np.float16 else np.float32
    tensor = ir.Tensor(dequantize(stored, qparams_of(node)).astype(dtype), name=output.name)
    value = ir.Value(name=output.name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=tensor.shape)
    carry(value, output)
    output.name = f"{output.name}/folded"
    output.replace_all_uses_with(value, replace_graph_outputs=True)
    node.graph.register_initializer(value)


def _bypass(graph: ir.Graph, dequantized: ir.Value, source: ir.Value) -> None:
    """Let the consumers of a Q/DQ pair read its input; an Identity keeps the name of a graph output."""
    if dequantized.is_graph_output():
        for user, index in tuple(dequantized.uses()):
            user.replace_input_with(index, source)
        node = ir.node("Identity", [source], name=f"{dequantized.name}/Identity")
        final = node.outputs[0]
        final.name, final.type, final.shape = dequantized.name, dequantized.type, dequantized.shape
        dequantized.name = f"{dequantized.name}/read"
        graph.append(node)
        for index, output in enumerate(graph.outputs):
            if output is dequantized:
                graph.outputs[index] = final
        return
    dequantized.replace_all_uses_with(source)
