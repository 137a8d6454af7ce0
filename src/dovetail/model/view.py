"""A model with the nodes of another one, but other inputs, outputs or initializers: without a copy of the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir


def view_of(
    model: ir.Model,
    *,
    inputs: Sequence[ir.Value] | None = None,
    outputs: Sequence[ir.Value] | None = None,
    nodes: Iterable[ir.Node] | None = None,
    initializers: Sequence[ir.Value] | None = None,
) -> ir.Model:
    """The model with these instead of its own; only to be read, or serialized."""
    graph = model.graph
    view = ir.GraphView(
        graph.inputs if inputs is None else inputs,
        graph.outputs if outputs is None else outputs,
        nodes=graph if nodes is None else nodes,
        initializers=tuple(graph.initializers.values()) if initializers is None else initializers,
        doc_string=graph.doc_string,
        opset_imports=dict(graph.opset_imports),
        name=graph.name,
        metadata_props=dict(graph.metadata_props),
    )
    return ir.Model(
        view,  # type: ignore[arg-type]  # the documentation of GraphView allows it
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=tuple(model.functions.values()),
        metadata_props=dict(model.metadata_props),
    )
