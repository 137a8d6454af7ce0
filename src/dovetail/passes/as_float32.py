"""A graph that computes in float16 as one in float32: other tools' files for GPUs come that way, with float16 scales.

Every float16 number is a float32 number, so constants and scales keep their values; only rounding in between goes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, is_op
from dovetail.model.origin import each_value
from dovetail.pass_record import PassRecord, Site
from dovetail.passes.infer_shapes import infer_shapes

_FLOAT, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16


def as_float32(model: ir.Model) -> PassRecord:
    """Turn every float16 tensor, ends included, into float32; Casts between the two go."""
    infer_shapes(model)
    graph = model.graph
    changed: list[Site] = []
    for value in list(each_value(graph)):
        if value.dtype is not _HALF:
            continue
        if value.const_value is not None:
            tensor = ir.Tensor(value.const_value.numpy().astype(np.float32), name=value.name)
            value.const_value = tensor
        value.type = ir.TensorType(_FLOAT)
        changed.append(Site(str(value.name), "float16 as float32"))
    for node in list(graph):
        for name in ("to", "dtype", "output_dtype", "precision"):
            if attribute(node, name, 0) == _HALF:
                node.attributes[name] = ir.AttrInt64(name, int(_FLOAT))
        filled = attribute(node, "value", None)
        if is_op(node, "Constant", "ConstantOfShape") and filled is not None and filled.dtype is _HALF:
            node.attributes["value"] = ir.AttrTensor("value", ir.Tensor(filled.numpy().astype(np.float32)))
        source = node.inputs[0] if node.inputs else None
        if is_op(node, "Cast") and attribute(node, "to", 0) == _FLOAT and source is not None and source.dtype is _FLOAT:
            edit.replace_value(node.outputs[0], source)
            edit.remove_dead(graph, [node])
    return PassRecord("as_float32", tuple(changed))
