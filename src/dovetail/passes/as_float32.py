"""Convert a float16 or bfloat16 graph to float32: other tools write files for GPUs in float16, including the scales.

Float32 holds every float16 and bfloat16 value exactly, so constants and scales keep their values; only the rounding of
intermediate results disappears.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, is_op
from dovetail.model.origin import each_value
from dovetail.pass_record import PassRecord, Site
from dovetail.passes.infer_shapes import infer_shapes

_FLOAT = ir.DataType.FLOAT
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
# Attributes that name a type.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "precision", "stash_type")


def has_float16(model: ir.Model) -> bool:
    """Whether any tensor is declared as float16 or bfloat16, or an operator creates one."""
    if any(value.dtype in _HALF for value in each_value(model.graph)):
        return True
    nodes = model.graph.all_nodes()
    return any(attribute(node, name, 0) in _HALF for node in nodes for name in _TYPE_ATTRIBUTES)


def as_float32(model: ir.Model) -> PassRecord:
    """Convert every float16 and bfloat16 tensor, also inputs and outputs, to float32; remove the Casts between them."""
    infer_shapes(model)
    graph = model.graph
    changed: list[Site] = []
    for value in list(each_value(graph)):
        dtype = value.dtype
        if dtype is None or dtype not in _HALF:
            continue
        if value.const_value is not None:
            tensor = ir.Tensor(value.const_value.numpy().astype(np.float32), name=value.name)
            value.const_value = tensor
        value.type = ir.TensorType(_FLOAT)
        changed.append(Site(str(value.name), f"converted from {dtype.name.lower()} to float32"))
    for node in list(graph.all_nodes()):
        for name in _TYPE_ATTRIBUTES:
            if attribute(node, name, 0) in _HALF:
                node.attributes[name] = ir.AttrInt64(name, int(_FLOAT))
        filled = attribute(node, "value", None)
        if is_op(node, "Constant", "ConstantOfShape") and filled is not None and filled.dtype in _HALF:
            node.attributes["value"] = ir.AttrTensor("value", ir.Tensor(filled.numpy().astype(np.float32)))
        source = node.inputs[0] if node.inputs else None
        if is_op(node, "Cast") and attribute(node, "to", 0) == _FLOAT and source is not None and source.dtype is _FLOAT:
            edit.replace_value(node.outputs[0], source)
            edit.remove_dead(edit.graph_of(node), [node])
    return PassRecord("as_float32", tuple(changed))
