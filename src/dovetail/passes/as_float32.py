"""Convert a float16 graph to float32: other tools write files for GPUs in float16, including the scales.

Float32 holds every float16 value exactly, so constants and scales keep their values; only the rounding of intermediate
results disappears.
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
    """Convert every float16 tensor, inputs and outputs included, to float32; remove the Casts between the two."""
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
        changed.append(Site(str(value.name), "converted from float16 to float32"))
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
