"""Infer the type and shape of every tensor."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of
from dovetail.model.skeleton import skeleton
from dovetail.pass_record import PassRecord, Site


def infer_shapes(model: ir.Model) -> PassRecord:
    """Set shapes and dtypes inferred from the inputs alone; the record declines tensors whose shape stays unknown.

    Shapes that the exporter recorded are ignored, as they may belong to another input shape; only those of outputs of
    operators outside ONNX, which inference does not support, are kept.
    """
    before = sum(shape_of(value) is None for value in _outputs(model))
    proto = _without_recorded_shapes(model)
    inferred = _inferred(proto)
    types = {info.name: info.type for info in (*inferred.graph.value_info, *inferred.graph.output)}
    for value in _outputs(model):
        _apply(value, types.get(str(value.name)))
    unknown = [value for value in _outputs(model) if shape_of(value) is None]
    count = before - len(unknown)
    changed = (Site(str(model.graph.name), f"{count} shapes inferred"),) if count > 0 else ()
    reason = _why_unknown(proto) if unknown else ""
    return PassRecord("infer_shapes", changed, tuple(Site(origin_of(value).name, reason) for value in unknown))


def _inferred(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Infer shapes, also through GroupNormalization, which onnx 1.23 does not support: it keeps the input shape."""
    while True:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        known = {info.name: info.type for info in (*inferred.graph.input, *inferred.graph.value_info)}
        candidates = [
            (node.output[0], known[node.input[0]])
            for node in proto.graph.node
            if node.op_type == "GroupNormalization" and node.input[0] in known and node.output[0] not in known
        ]
        recorded = {info.name for info in proto.graph.value_info}
        new = [(name, type_proto) for name, type_proto in candidates if name not in recorded]
        if not new:
            return inferred
        for name, type_proto in new:
            proto.graph.value_info.add(name=name).type.CopyFrom(type_proto)


def _outputs(model: ir.Model) -> list[ir.Value]:
    return [value for node in model.graph for value in node.outputs if value.name]


def _without_recorded_shapes(model: ir.Model) -> onnx.ModelProto:
    proto = skeleton(model)
    kept = {name for node in proto.graph.node if node.domain for name in node.output}
    stale = [info for info in proto.graph.value_info if info.name not in kept]
    for info in stale:
        proto.graph.value_info.remove(info)
    for info in proto.graph.output:
        if info.name not in kept:
            info.type.tensor_type.ClearField("shape")
    return proto


def _apply(value: ir.Value, type_proto: onnx.TypeProto | None) -> None:
    """Set the inferred type and shape, as new objects: values of a cloned model share them with the original."""
    if type_proto is None or not type_proto.HasField("tensor_type"):
        return
    tensor = type_proto.tensor_type
    if tensor.elem_type:
        value.type = ir.TensorType(ir.DataType(tensor.elem_type))
    if tensor.HasField("shape"):
        dims = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]
        value.shape = ir.Shape(dims)


def _why_unknown(proto: onnx.ModelProto) -> str:
    try:
        onnx.shape_inference.infer_shapes(proto, data_prop=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        return f"shape inference fails: {str(error).strip().splitlines()[-1]}"
    return "the shape depends on data, or on an input without a static shape"
