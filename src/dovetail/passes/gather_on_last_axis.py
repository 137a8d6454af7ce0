"""Gather along the last axis in place of another one, between two Transposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, is_op, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def gather_on_last_axis(model: ir.Model, applies: Callable[[ir.Node], bool] = lambda node: True) -> PassRecord:
    """Rewrite the Gathers with one axis of indices for which ``applies`` is true; the elements do not change."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Gather") or not applies(node):
            continue
        (data, indices), output = node.inputs[:2], node.outputs[0]
        where, shape = origin_of(output).name, shape_of(data)
        count = shape_of(indices)
        if data is None or indices is None or shape is None or count is None or len(count) != 1:
            declined.append(Site(where, "its shape is unknown, or its indices do not have exactly one axis"))
            continue
        axis = int(attribute(node, "axis", 0)) % len(shape)
        if axis == len(shape) - 1:
            continue
        edit.replace_value(output, insert_gather(node, data, axis, indices, count[0]))
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, "Gather moved to the last axis"))
    return PassRecord("gather_on_last_axis", tuple(changed), tuple(declined))


def insert_gather(node: ir.Node, value: ir.Value, axis: int, indices: ir.Value, count: int) -> ir.Value:
    """Insert a Gather of ``count`` elements along an axis before a node that it replaces."""
    rank = len(shape_of(value) or ())
    swapped = Step("Transpose", _swap(rank, axis)) if axis != rank - 1 else None
    if swapped is not None:
        value = insert_step(node, value, swapped, replaces=[node])
    shape = (*(shape_of(value) or ())[:-1], count)
    value = edit.insert(
        node,
        "Gather",
        [value, indices],
        attributes={"axis": rank - 1},
        source=node.outputs[0],
        replaces=[node],
        shape=shape,
    )
    return value if swapped is None else insert_step(node, value, swapped, replaces=[node])


def _swap(rank: int, axis: int) -> tuple[int, ...]:
    order: Sequence[int] = range(rank)
    return tuple(rank - 1 if i == axis else axis if i == rank - 1 else i for i in order)
