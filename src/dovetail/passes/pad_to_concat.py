"""Write a Pad with a constant as Concats with constants, axis by axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.model.padding import Padding, padding_of
from dovetail.pass_record import PassRecord, Site


def pad_to_concat(model: ir.Model, applies: Callable[[ir.Node], bool] = lambda node: True) -> PassRecord:
    """Replace the Pads of float tensors for which ``applies`` is true; what a Pad removes is removed by a Slice."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Pad") or attribute(node, "mode", "constant") != "constant" or not applies(node):
            continue
        output = node.outputs[0]
        where = origin_of(output).name
        padding, shape = padding_of(node), shape_of(node.inputs[0])
        if padding is None or shape is None or 0 in shape or not edit.is_float(output):
            declined.append(Site(where, "it is not a float tensor, or its shape, pads or value are unknown"))
            continue
        edit.replace_value(output, _concatenated(node, padding, shape))
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, "Pad rewritten as Concat with constants"))
    return PassRecord("pad_to_concat", tuple(changed), tuple(declined))


def _concatenated(node: ir.Node, padding: Padding, shape: tuple[int, ...]) -> ir.Value:
    value = node.inputs[0]
    if value is None:
        raise TypeError(f"node {node.name!r} has no input")
    value = _without_removed(node, value, padding, shape)
    for axis in np.flatnonzero((padding.amounts > 0).any(axis=0)).tolist():
        before, after = (_filled(node, value, axis, int(size), padding.value) for size in padding.amounts[:, axis])
        sizes = list(shape_of(value) or ())
        sizes[axis] += sum(max(int(size), 0) for size in padding.amounts[:, axis])
        value = edit.insert(
            node,
            "Concat",
            [operand for operand in (before, value, after) if operand is not None],
            attributes={"axis": axis},
            source=node.outputs[0],
            replaces=[node],
            shape=sizes,
        )
    return value


def _without_removed(node: ir.Node, value: ir.Value, padding: Padding, shape: tuple[int, ...]) -> ir.Value:
    """The input without the elements that negative pads remove."""
    starts = np.maximum(-padding.amounts[0], 0)
    ends = np.array(shape) - np.maximum(-padding.amounts[1], 0)
    axes = np.flatnonzero((padding.amounts < 0).any(axis=0))
    if not axes.size:
        return value
    graph, output = edit.graph_of(node), node.outputs[0]
    bounds = [
        edit.add_initializer(graph, array.astype(np.int64), name=f"{output.name}/{name}", source=output)
        for name, array in (("starts", starts[axes]), ("ends", ends[axes]), ("axes", axes))
    ]
    sizes = [max(int(end - start), 0) for start, end in zip(starts, ends, strict=True)]
    return edit.insert(node, "Slice", [value, *bounds], source=output, replaces=[node], shape=sizes)


def _filled(node: ir.Node, value: ir.Value, axis: int, size: int, fill: float) -> ir.Value | None:
    """A constant with the shape of a value and this size along one axis; None for no elements."""
    if size <= 0 or value.dtype is None:
        return None
    shape = list(shape_of(value) or ())
    shape[axis] = size
    array = np.full(shape, fill, value.dtype.numpy())
    return edit.add_initializer(edit.graph_of(node), array, name=f"{value.name}/padding", source=node.outputs[0])
