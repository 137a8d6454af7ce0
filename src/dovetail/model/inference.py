"""Shape inference by the onnx package, from the shapes of the inputs alone."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from dovetail.errors import InputError
from dovetail.model.skeleton import without_recorded_shapes

Types = dict[str, onnx.TypeProto]
_LONGEST_VECTOR = 100_000


def inferred_types(model: ir.Model, *, apply: bool = False) -> Types:
    """The inferred types by tensor name; with ``apply`` they are set in the model.

    Shapes that the exporter recorded are ignored, as they may belong to another input shape; only those of outputs of
    operators outside ONNX, which inference does not support, are kept.
    """
    types = types_in(infer(without_recorded_shapes(model)))
    if apply:
        for value in node_outputs(model):
            set_type(value, types.get(str(value.name)))
    return types


def run_inference(proto: onnx.ModelProto, *, strict: bool = False) -> onnx.ModelProto:
    """onnx's shape inference, which also follows the values of shapes; ``strict`` raises its InferenceError."""
    try:
        return onnx.shape_inference.infer_shapes(proto, strict_mode=strict, data_prop=follows_values(proto))
    except MemoryError as error:
        raise InputError("shape inference ran out of memory: a size in the model is too large") from error


def follows_values(proto: onnx.ModelProto) -> bool:
    """Whether values of shapes are followed: not in a model with a very long vector, for each of whose elements onnx
    1.23 would allocate 140 bytes."""
    shapes = [info.type.tensor_type.shape.dim for info in proto.graph.input]
    return all(len(dims) != 1 or dims[0].dim_value <= _LONGEST_VECTOR for dims in shapes)


def types_in(inferred: onnx.ModelProto) -> Types:
    """The types that inference recorded in a model, by tensor name."""
    return {info.name: info.type for info in (*inferred.graph.value_info, *inferred.graph.output)}


def infer(proto: onnx.ModelProto, *, strict: bool = False) -> onnx.ModelProto:
    """Infer shapes, also through GroupNormalization, which onnx 1.23 does not support; ``strict`` raises its errors."""
    if any(node.op_type == "GroupNormalization" for node in proto.graph.node):
        _record_group_norms(proto)
    return run_inference(proto, strict=strict)


def _record_group_norms(proto: onnx.ModelProto) -> None:
    """Record the type of every output of GroupNormalization, which is that of its input, as far as it is known."""
    while True:
        inferred = run_inference(proto)
        known = {info.name: info.type for info in (*inferred.graph.input, *inferred.graph.value_info)}
        candidates = [
            (node.output[0], known[node.input[0]])
            for node in proto.graph.node
            if node.op_type == "GroupNormalization" and node.input[0] in known and node.output[0] not in known
        ]
        recorded = {info.name for info in proto.graph.value_info}
        new = [(name, type_proto) for name, type_proto in candidates if name not in recorded]
        if not new:
            return
        for name, type_proto in new:
            proto.graph.value_info.add(name=name).type.CopyFrom(type_proto)


def node_outputs(model: ir.Model) -> list[ir.Value]:
    """The named outputs of the nodes of the main graph."""
    return [value for node in model.graph for value in node.outputs if value.name]


def set_type(value: ir.Value, type_proto: onnx.TypeProto | None) -> None:
    """Set the inferred type and shape, as new objects: values of a cloned model share them with the original."""
    if type_proto is None or not type_proto.HasField("tensor_type"):
        return
    tensor = type_proto.tensor_type
    if tensor.elem_type:
        value.type = ir.TensorType(ir.DataType(tensor.elem_type))
    if tensor.HasField("shape"):
        dims = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]
        value.shape = ir.Shape(dims)


def rank_of(value: ir.Value | None) -> int | None:
    """The rank of a tensor, if it is known; 16-bit Q/DQ pairs of ONNX Runtime's own domain keep that of their input."""
    if value is None:
        return None
    if value.const_value is not None:
        return len(value.const_value.shape)
    if value.shape is not None:
        return value.shape.rank()
    node = value.producer()
    is_pair = node is not None and node.op_type in ("QuantizeLinear", "DequantizeLinear")
    return rank_of(node.inputs[0]) if node is not None and is_pair else None
