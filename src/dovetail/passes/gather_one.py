"""Taking one thing out of a stack: the decoder's last answer from all of them, the only level of a pyramid."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, is_op, scalar_of, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def gather_one(model: ir.Model) -> PassRecord:
    """Replace a Gather of one constant index by a Reshape, where the axis, or the part of a Concat, has that one only.

    In integers the parts of a Concat share one grid, so what nobody asked for would coarsen what is taken.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Gather") or scalar_of(node.inputs[1]) is None or shape_of(node.outputs[0]) is None:
            continue
        output = node.outputs[0]
        where = origin_of(output).name
        taken = _taken(node)
        if taken is None:
            declined.append(Site(where, "it takes one of several that were not put together by a Concat"))
            continue
        step = Step("Reshape", shape_of(output) or ())
        edit.replace_value(output, insert_step(node, taken, step, replaces=[node]))
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, f"is {origin_of(taken).name!r} in another shape"))
    return PassRecord("gather_one", tuple(changed), tuple(declined))


def _taken(node: ir.Node) -> ir.Value | None:
    """The tensor whose only slice along the axis is what the Gather takes."""
    value, index = node.inputs[0], int(scalar_of(node.inputs[1]) or 0)
    axis = int(attribute(node, "axis", 0))
    while value is not None and (shape := shape_of(value)) is not None:
        index, axis = index % shape[axis], axis % len(shape)
        if shape[axis] == 1:
            return value
        stack = value.producer()
        if stack is None or not is_op(stack, "Concat") or int(attribute(stack, "axis", 0)) % len(shape) != axis:
            return None
        value = None
        for part in stack.inputs:
            size = (shape_of(part) or (0,) * len(shape))[axis]
            if size == 0:  # unknown, so what follows cannot be counted either
                return None
            if index < size:
                value = part
                break
            index -= size
    return None
