"""Say the Softmax axis in one way."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.attention import each_attention
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def attention_softmax(model: ir.Model) -> PassRecord:
    """Give the Softmax of every attention the axis -1; some exporters count from the front."""
    changed: list[Site] = []
    for attention in each_attention(model.graph):
        axis = edit.attribute(attention.softmax, "axis", None)
        if axis != -1:
            attention.softmax.attributes["axis"] = ir.AttrInt64("axis", -1)
            changed.append(Site(origin_of(attention.softmax.outputs[0]).name, f"axis {axis} made -1"))
    return PassRecord("attention_softmax", tuple(changed))
