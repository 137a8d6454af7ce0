"""Infer the type and shape of every tensor."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from dovetail.model.edit import shape_of
from dovetail.model.inference import inferred_types, node_outputs, run_inference
from dovetail.model.origin import origin_of
from dovetail.model.skeleton import without_recorded_shapes
from dovetail.pass_record import PassRecord, Site


def infer_shapes(model: ir.Model) -> PassRecord:
    """Set shapes and dtypes inferred from the inputs alone; the record declines tensors whose shape stays unknown.

    Shapes that the exporter recorded are ignored, as they may belong to another input shape; only those of outputs of
    operators outside ONNX, which inference does not support, are kept.
    """
    before = sum(shape_of(value) is None for value in node_outputs(model))
    inferred_types(model, apply=True)
    unknown = [value for value in node_outputs(model) if shape_of(value) is None]
    count = before - len(unknown)
    changed = (Site(str(model.graph.name), f"{count} shapes inferred"),) if count > 0 else ()
    reason = _why_unknown(without_recorded_shapes(model)) if unknown else ""
    return PassRecord("infer_shapes", changed, tuple(Site(origin_of(value).name, reason) for value in unknown))


def _why_unknown(proto: onnx.ModelProto) -> str:
    try:
        run_inference(proto, strict=True)
    except onnx.shape_inference.InferenceError as error:
        return f"shape inference fails: {str(error).strip().splitlines()[-1]}"
    return "the shape depends on data, or on an input without a static shape"
