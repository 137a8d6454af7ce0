"""Bypass a Gather that selects one input of a Concat: the last of several decoder outputs, the only pyramid level."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, is_op, scalar_of, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def bypass_gather_of_concat(model: ir.Model) -> PassRecord:
    """Replace a Gather of one index by a Reshape, where the axis, or the selected input of a Concat, has size 1.

    Quantized inputs of a Concat share one scale, so unselected inputs would make the selected one coarser.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Gather") or scalar_of(node.inputs[1]) is None or shape_of(node.outputs[0]) is None:
            continue
        output = node.outputs[0]
        where = origin_of(output).name
        selected = _selected(node)
        if selected is None:
            declined.append(Site(where, "the element that it selects is not a whole input of a Concat"))
            continue
        step = Step("Reshape", shape_of(output) or ())
        edit.replace_value(output, insert_step(node, selected, step, replaces=[node]))
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, f"replaced by a Reshape of {origin_of(selected).name!r}"))
    return PassRecord("bypass_gather_of_concat", tuple(changed), tuple(declined))


def _selected(node: ir.Node) -> ir.Value | None:
    """The tensor of size 1 along the axis that the Gather selects; None if there is none."""
    value, index = node.inputs[0], int(scalar_of(node.inputs[1]) or 0)
    axis = int(attribute(node, "axis", 0))
    while value is not None and (shape := shape_of(value)) is not None:
        index, axis = index % shape[axis], axis % len(shape)
        if shape[axis] == 1:
            return value
        concat = value.producer()
        if concat is None or not is_op(concat, "Concat") or int(attribute(concat, "axis", 0)) % len(shape) != axis:
            return None
        value = None
        for part in concat.inputs:
            size = (shape_of(part) or (0,) * len(shape))[axis]
            if size == 0:  # unknown, so the position of the next inputs is unknown too
                return None
            if index < size:
                value = part
                break
            index -= size
    return None
