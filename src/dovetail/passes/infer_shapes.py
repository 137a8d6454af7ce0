"""Infer the type and shape of every tensor."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of
from dovetail.model.skeleton import skeleton
from dovetail.pass_record import PassRecord, Site


def infer_shapes(model: ir.Model) -> PassRecord:
    """Set shapes and dtypes from the inputs' alone; declines name the tensors whose shape stays unknown.

    Shapes that the exporter noted are not believed, as they may be of another input shape; only those behind an
    operator outside ONNX, which inference cannot see through, are kept.
    """
    before = sum(shape_of(value) is None for value in _outputs(model))
    proto = _without_noted_shapes(model)
    inferred = _inferred(proto)
    noted = {info.name: info.type for info in (*inferred.graph.value_info, *inferred.graph.output)}
    for value in _outputs(model):
        _apply(value, noted.get(str(value.name)))
    unknown = [value for value in _outputs(model) if shape_of(value) is None]
    found = before - len(unknown)
    changed = (Site(str(model.graph.name), f"{found} shapes inferred"),) if found > 0 else ()
    reason = _why_unknown(proto) if unknown else ""
    return PassRecord("infer_shapes", changed, tuple(Site(origin_of(value).name, reason) for value in unknown))


def _inferred(proto: onnx.ModelProto) -> onnx.ModelProto:
    """What onnx infers, over group norms too, of which it knows nothing (onnx 1.23): they leave shapes as they are."""
    while True:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        known = {info.name: info.type for info in (*inferred.graph.input, *inferred.graph.value_info)}
        behind = [
            (node.output[0], known[node.input[0]])
            for node in proto.graph.node
            if node.op_type == "GroupNormalization" and node.input[0] in known and node.output[0] not in known
        ]
        noted = {info.name for info in proto.graph.value_info}
        new = [(name, kind) for name, kind in behind if name not in noted]
        if not new:
            return inferred
        for name, kind in new:
            proto.graph.value_info.add(name=name).type.CopyFrom(kind)


def _outputs(model: ir.Model) -> list[ir.Value]:
    return [value for node in model.graph for value in node.outputs if value.name]


def _without_noted_shapes(model: ir.Model) -> onnx.ModelProto:
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
    """Take over what was inferred; new objects, because values of a cloned model share them with the original."""
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
        return f"shape inference stops: {str(error).strip().splitlines()[-1]}"
    return "the shape depends on data, or on an input that is not pinned"
