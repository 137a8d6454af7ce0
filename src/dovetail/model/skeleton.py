"""A model's proto without its weights, for the tools of the onnx package, which serialize the whole model."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
import onnx_ir as ir

from dovetail.model.view import view_of

# Shape constants and scalars stay, because shape inference and opset conversion read their values.
_INLINE_BYTES = 1024


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """The model with every initializer above a kilobyte turned into an input; the model itself is not changed."""
    return _with_nodes(model, model.graph)


def without_recorded_shapes(model: ir.Model) -> onnx.ModelProto:
    """The skeleton of a model without the shapes that inference determines.

    Shapes of outputs of operators outside ONNX, which inference does not support, are kept.
    """
    proto = _with_nodes(model, ())
    del proto.graph.value_info[:]
    for node in model.graph:
        serialized = ir.serde.serialize_node(node)
        _forget_shapes_inside(serialized)
        proto.graph.node.append(serialized)
        for value in node.outputs if node.domain else ():
            if value.name and value.type is not None and not value.is_graph_output():
                ir.serde.serialize_value_into(proto.graph.value_info.add(), value)
    kept = {value.name for node in model.graph if node.domain for value in node.outputs}
    _forget_shapes(info for info in proto.graph.output if info.name not in kept)
    return proto


def _forget_shapes_inside(node: onnx.NodeProto) -> None:
    """Forget the shapes recorded in the branches and bodies of a node, which exporters write wrongly.

    Inputs of bodies and outputs of operators outside ONNX keep theirs.
    """
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            kept = {name for inner in graph.node if inner.domain for name in inner.output}
            _forget_shapes(info for info in (*graph.value_info, *graph.output) if info.name not in kept)
            for inner in graph.node:
                _forget_shapes_inside(inner)


def _forget_shapes(infos: Iterable[onnx.ValueInfoProto]) -> None:
    for info in infos:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")


def _with_nodes(model: ir.Model, nodes: Iterable[ir.Node]) -> onnx.ModelProto:
    """The proto with these nodes of the model."""
    graph = model.graph
    small, large = list[ir.Value](), list[ir.Value]()
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            small.append(value)
        elif tensor.nbytes <= _INLINE_BYTES:
            # A copy, because the tools cannot read external data, and because the tensor's own name is serialized.
            copy = ir.Tensor(np.array(tensor.numpy()), tensor.dtype, name=value.name)
            small.append(_like(value, value.type, value.shape, copy))
        else:
            large.append(_like(value, ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())))
    view = view_of(model, inputs=(*graph.inputs, *large), nodes=nodes, initializers=small)
    return ir.serde.serialize_model(view)


def _like(
    value: ir.Value, kind: ir.TypeProtocol | None, shape: ir.Shape | None, tensor: ir.TensorProtocol | None = None
) -> ir.Value:
    """A value of no graph, with the name and the metadata of another one."""
    metadata = dict(value.metadata_props)
    return ir.Value(
        name=value.name,
        type=kind,
        shape=shape,
        doc_string=value.doc_string,
        const_value=tensor,
        metadata_props=metadata,
    )


def refill(bare: ir.Model, model: ir.Model) -> None:
    """Restore the weights and inputs of ``model``, in place, in a model that was made from its skeleton."""
    inputs = {value.name for value in model.graph.inputs}
    for value in list(bare.graph.inputs):
        if value.name in inputs:
            continue
        bare.graph.inputs.remove(value)
        value.const_value = model.graph.initializers[str(value.name)].const_value
        bare.graph.register_initializer(value)
