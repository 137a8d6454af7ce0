"""Evaluate a single node: infer the types of its outputs, or compute them with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model.edit import shape_of

TypeAndShape = tuple[ir.TensorType, ir.Shape]
_IR_VERSION = 10
# Shape inference gets the values of constants up to this many elements: shapes, axes and repeats are short.
_MAX_ELEMENTS = 1024


# Operators whose outputs may differ from run to run.
RANDOM = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",
)


class EvaluationError(Exception):
    """ONNX Runtime cannot run the node on its own; the message says why."""


def evaluate(node: ir.Node, inputs: Mapping[str, Array], opsets: Mapping[str, int]) -> tuple[Array, ...]:
    """The results of a node for these inputs, one for each named output."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    errors = (state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented, state.RuntimeException)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    names = [value.name for value in node.outputs if value.name]
    try:
        session = onnxruntime.InferenceSession(
            _one_node_model(node, inputs, opsets).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results = session.run(names, {name: np.asarray(array, order="C") for name, array in inputs.items()})
    except (*errors, RuntimeError, TypeError, ValueError) as error:
        raise EvaluationError(f"ONNX Runtime cannot compute the node: {str(error).strip().splitlines()[0]}") from error
    return tuple(np.asarray(result) for result in results)


def result_types(node: ir.Node, constants: Mapping[str, Array], opsets: Mapping[str, int]) -> list[TypeAndShape | None]:
    """The type and shape of every output that the inputs' shapes and the values of constant inputs determine."""
    if not onnx.defs.has(node.op_type, opsets[""]):
        return [None] * len(node.outputs)
    types: dict[str, onnx.TypeProto] = {}
    for value in node.inputs:
        if value is None:
            continue
        shape = constants[str(value.name)].shape if str(value.name) in constants else shape_of(value)
        if shape is None or value.dtype is None:
            return [None] * len(node.outputs)
        types[str(value.name)] = onnx.helper.make_tensor_type_proto(int(value.dtype), shape)
    short_constants = {
        name: onnx.numpy_helper.from_array(array, name)
        for name, array in constants.items()
        if array.size <= _MAX_ELEMENTS
    }
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op_type, opsets[""]),
            ir.serde.serialize_node(node),
            types,
            short_constants,
            opset_imports=[onnx.helper.make_opsetid("", opsets[""])],
            ir_version=_IR_VERSION,
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
        return [None] * len(node.outputs)
    return [_type_and_shape(inferred.get(str(value.name))) for value in node.outputs]


def _one_node_model(node: ir.Node, inputs: Mapping[str, Array], opsets: Mapping[str, int]) -> onnx.ModelProto:
    dtypes = {str(value.name): value.dtype for value in node.inputs if value is not None}
    graph = onnx.helper.make_graph(
        [ir.serde.serialize_node(node)],
        "one_node",
        [
            onnx.helper.make_tensor_value_info(name, int(dtypes[name] or 0), array.shape)
            for name, array in inputs.items()
        ],
        [onnx.ValueInfoProto(name=value.name) for value in node.outputs if value.name],
    )
    opset_imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return onnx.helper.make_model(graph, opset_imports=opset_imports, ir_version=_IR_VERSION)


def _type_and_shape(type_proto: onnx.TypeProto | None) -> TypeAndShape | None:
    if type_proto is None or not type_proto.HasField("tensor_type") or not type_proto.tensor_type.HasField("shape"):
        return None
    tensor = type_proto.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]
    return ir.TensorType(ir.DataType(tensor.elem_type)), ir.Shape(dims)
