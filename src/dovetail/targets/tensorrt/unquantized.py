"""An emitted graph without its Quantize/Dequantize pairs: what float16 would be, and where 8 bit stands in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import DType
from dovetail.model.attention import ScalePlace, scale_at
from dovetail.model.edit import constant_of, is_op
from dovetail.model.movers import MOVERS
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
    """Take every pair out of a copy; stored constants are read back."""
    model = emitted.clone()
    infer_shapes(model)  # another tool's file need not say its types
    graph = model.graph
    reads = [node for node in graph if is_dequantize(node)]
    edges = {edge: qparams_of(node).dtype for node in reads for edge in _readers(node.outputs[0])}
    for node in reads:
        source = node.inputs[0]
        array = constant_of(source)
        maker = None if source is None else source.producer()
        if array is not None:
            _read_back(node)
        elif maker is not None and is_quantize(maker) and maker.inputs[0] is not None:
            _bypass(graph, node.outputs[0], maker.inputs[0])
        else:
            continue
        graph.remove(node, safe=True)
    for node in [node for node in graph if is_quantize(node) and not node.outputs[0].uses()]:
        graph.remove(node, safe=True)
    drop_unused_constants(graph)
    return UnquantizedModel(model, edges)


def _readers(value: ir.Value) -> list[Edge]:
    """The edges that read a value as it is, moved, cast, or times one number: the builder looks through all these."""
    found: list[Edge] = []
    for node, index in value.uses():
        found.append(Edge(node.name or "", index))
        scale = scale_at(node, ScalePlace.QUERY)
        if (is_op(node, "Cast", *MOVERS) and not index) or (scale is not None and scale.data is value):
            found += [edge for output in node.outputs for edge in _readers(output)]
    return found


def _read_back(node: ir.Node) -> None:
    output, stored = node.outputs[0], constant_of(node.inputs[0])
    if stored is None or node.graph is None:
        raise ValueError(f"{node.name!r} reads no constant")
    scale = constant_of(node.inputs[1])  # says the type, also below opset 19, where none is inferred from it
    real = np.float16 if scale is not None and scale.dtype == np.float16 else np.float32
    tensor = ir.Tensor(dequantize(stored, qparams_of(node)).astype(real), name=output.name)
    value = ir.Value(name=output.name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=tensor.shape)
    carry(value, output)
    output.name = f"{output.name}/folded"
    output.replace_all_uses_with(value, replace_graph_outputs=True)
    node.graph.register_initializer(value)


def _bypass(graph: ir.Graph, read: ir.Value, real: ir.Value) -> None:
    """Give the readers of a pair what was stored; at a graph's output an Identity keeps the name."""
    if read.is_graph_output():
        for user, index in tuple(read.uses()):
            user.replace_input_with(index, real)
        node = ir.node("Identity", [real], name=f"{read.name}/Identity")
        final = node.outputs[0]
        final.name, final.type, final.shape = read.name, read.type, read.shape
        read.name = f"{read.name}/read"
        graph.append(node)
        for index, output in enumerate(graph.outputs):
            if output is read:
                graph.outputs[index] = final
        return
    read.replace_all_uses_with(real)
