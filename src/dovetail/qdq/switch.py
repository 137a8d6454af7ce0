"""A simulation in which the storage of some edges can be switched at run time: many variants in one session."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.model.edit import add_initializer, constant_of, forget_names, graph_of, insert, shape_of
from dovetail.qdq.params import IR_TYPES, is_dequantize

_SWITCH = "switch/{}"


def with_switches(simulation: ir.Model, others: Mapping[Edge, QParams]) -> ir.Model:
    """Give each edge, which has a conversion of its own, a second one to these numbers, and an input that chooses."""
    model = simulation.clone()
    forget_names(model.graph)
    nodes = {node.name: node for node in model.graph}
    for number, (edge, params) in enumerate(others.items()):
        node = nodes[edge.node]
        usual = node.inputs[edge.index]
        source = None if usual is None else _unconverted(usual)
        if usual is None or source is None:
            raise ValueError(f"edge {str(edge)!r} has no conversion of its own")
        flag = ir.Value(name=_SWITCH.format(number), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape(()))
        model.graph.inputs.append(flag)
        other = _converted(node, source, params)
        chosen = insert(node, "Where", [flag, other, usual], source=usual, replaces=[], shape=shape_of(usual))
        node.replace_input_with(edge.index, chosen)
    return model


def _unconverted(usual: ir.Value) -> ir.Value | None:
    """What an edge's own conversion reads; a constant has no form left but the one it was read back in."""
    if constant_of(usual) is not None:
        return usual
    read = usual.producer()
    stored = read.inputs[0] if read is not None and is_dequantize(read) else None
    quantize = None if stored is None else stored.producer()
    return None if quantize is None else quantize.inputs[0]


def switched(sample: Sample, count: int, on: Collection[int]) -> Sample:
    """A sample with the switches of these edges, counted in order, on."""
    return {**sample, **{_SWITCH.format(number): np.array(number in on) for number in range(count)}}


def _converted(before: ir.Node, source: ir.Value, params: QParams) -> ir.Value:
    graph, dtype = graph_of(before), IR_TYPES[params.dtype]
    name = f"{source.name}/other"
    numbers = [
        add_initializer(graph, params.scale, name=f"{name}/scale", source=source),
        add_initializer(graph, params.zero_point.astype(params.dtype.numpy), name=f"{name}/zero_point", source=source),
    ]
    shape = shape_of(source)
    stored = insert(before, "QuantizeLinear", [source, *numbers], source=source, replaces=[], shape=shape, dtype=dtype)
    return insert(before, "DequantizeLinear", [stored, *numbers], source=source, replaces=[], shape=shape)
