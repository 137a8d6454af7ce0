"""A part of a model, as a model: some of its nodes, with the tensors between them and the rest as inputs and
outputs."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir
from onnx_ir.convenience import extract


def subset_of(model: ir.Model, nodes: Collection[int]) -> ir.Model:
    """The nodes with these indices, as a model of its own; every tensor must have a type and a shape.

    Its inputs are the tensors that the nodes read and do not compute; its outputs are those that none of them reads,
    and the outputs of the model that they compute. Tensors keep their names.
    """
    chosen = [node for index, node in enumerate(model.graph) if index in nodes]
    if not chosen:
        raise ValueError("a part of a model needs at least one node")
    computed = [value for node in chosen for value in node.outputs]
    read = dict.fromkeys(value for node in chosen for value in node.inputs if value is not None)
    inputs = [value for value in read if value not in computed and not value.is_initializer()]
    outputs = [value for value in computed if value not in read or value.is_graph_output()]
    graph = extract(model.graph, inputs, [value for value in outputs if value.uses() or value.is_graph_output()])
    return ir.Model(graph, ir_version=model.ir_version, metadata_props=dict(model.metadata_props))
