"""A simulation in which the qparams of some edges can be switched at run time: many variants in one session."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.model.edit import add_initializer, constant_of, forget_names, graph_of, insert, shape_of
from dovetail.qdq.params import IR_TYPES, is_dequantize

# The name of the graph input that turns a switch on.
SWITCH = "switch/{}"


def with_switches(simulation: ir.Model, alternatives: Mapping[Edge, QParams]) -> ir.Model:
    """A copy in which these edges have a second Q/DQ pair with these qparams, and a graph input that selects it."""
    model = simulation.clone()
    forget_names(model.graph)
    nodes = {node.name: node for node in model.graph}
    for number, (edge, params) in enumerate(alternatives.items()):
        node = nodes[edge.node]
        planned = node.inputs[edge.index]
        source = None if planned is None else _unconverted(planned)
        if planned is None or source is None:
            raise ValueError(f"edge {str(edge)!r} has no Q/DQ pair of its own")
        flag = ir.Value(name=SWITCH.format(number), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape(()))
        model.graph.inputs.append(flag)
        alternative = with_pair(node, source, params)
        inputs = [flag, alternative, planned]
        selected = insert(node, "Where", inputs, source=planned, replaces=[], shape=shape_of(planned))
        node.replace_input_with(edge.index, selected)
    return model


def _unconverted(planned: ir.Value) -> ir.Value | None:
    """The input of an edge's Q/DQ pair; a constant itself, because the simulation has only its dequantized values."""
    if constant_of(planned) is not None:
        return planned
    dequantize = planned.producer()
    quantized = dequantize.inputs[0] if dequantize is not None and is_dequantize(dequantize) else None
    quantize = None if quantized is None else quantized.producer()
    return None if quantize is None else quantize.inputs[0]


def switched(sample: Sample, count: int, on: Collection[int]) -> Sample:
    """A sample with values for ``count`` switches: those with an index in ``on`` select the alternative."""
    return {**sample, **{SWITCH.format(number): np.array(number in on) for number in range(count)}}


def with_pair(before: ir.Node, source: ir.Value, params: QParams) -> ir.Value:
    """Insert a QDQ pair after a value and return its output."""
    graph, dtype = graph_of(before), IR_TYPES[params.dtype]
    name = f"{source.name}/other"
    qparam_inputs = [
        add_initializer(graph, params.scale, name=f"{name}/scale", source=source),
        add_initializer(graph, params.zero_point.astype(params.dtype.numpy), name=f"{name}/zero_point", source=source),
    ]
    shape = shape_of(source)
    inputs = [source, *qparam_inputs]
    quantized = insert(before, "QuantizeLinear", inputs, source=source, replaces=[], shape=shape, dtype=dtype)
    return insert(before, "DequantizeLinear", [quantized, *qparam_inputs], source=source, replaces=[], shape=shape)
