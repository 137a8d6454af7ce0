"""Write the axis of every attention Softmax in one way."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.attention import each_attention
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def softmax_over_last_axis(model: ir.Model) -> PassRecord:
    """Set the axis of every attention Softmax to -1; some exporters count it from the front."""
    changed: list[Site] = []
    for attention in each_attention(model.graph):
        axis = edit.attribute(attention.softmax, "axis", None)
        if axis != -1:
            attention.softmax.attributes["axis"] = ir.AttrInt64("axis", -1)
            changed.append(Site(origin_of(attention.softmax.outputs[0]).name, f"axis {axis} written as -1"))
    return PassRecord("softmax_over_last_axis", tuple(changed))
