"""Write a Pad that repeats the border as a Concat of the tensor with Slices of it, one for each axis."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.model.padding import Padding, padding_of
from dovetail.pass_record import PassRecord, Site

_FIRST, _LAST = (0, 1), (-1, np.iinfo(np.int64).max)
_BOUNDS = ("start", "end", "axis")


def edge_pad_to_concat(model: ir.Model) -> PassRecord:
    """Replace every Pad with mode ``edge`` whose amounts are known; the outputs are the same elements."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Pad") or attribute(node, "mode", "constant") != "edge":
            continue
        output = node.outputs[0]
        where, padding = origin_of(output).name, padding_of(node)
        shape = shape_of(node.inputs[0])
        if padding is None or shape is None or 0 in shape or (padding.amounts < 0).any():
            declined.append(Site(where, "its shape or pads are unknown, or it removes elements"))
            continue
        edit.replace_value(output, _concatenated(node, padding, shape))
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, "Pad that repeats the border rewritten as Slice and Concat"))
    return PassRecord("edge_pad_to_concat", tuple(changed), tuple(declined))


def _concatenated(node: ir.Node, padding: Padding, shape: tuple[int, ...]) -> ir.Value:
    output, value = node.outputs[0], node.inputs[0]
    if value is None:
        raise ValueError(f"the Pad {node.name!r} has no input")
    sizes = list(shape)
    for axis, (before, after) in enumerate(padding.amounts.T.tolist()):
        if not before and not after:
            continue
        first = [_border(node, value, sizes, axis, _FIRST)] * before if before else []
        last = [_border(node, value, sizes, axis, _LAST)] * after if after else []
        sizes[axis] += before + after
        value = edit.insert(
            node,
            "Concat",
            [*first, value, *last],
            attributes={"axis": axis},
            source=output,
            replaces=[node],
            shape=sizes,
        )
    return value


def _border(node: ir.Node, value: ir.Value, sizes: list[int], axis: int, ends: tuple[int, int]) -> ir.Value:
    """The first or last elements of a tensor along an axis."""
    numbers = [_constant(node, np.array([number]), name) for number, name in zip((*ends, axis), _BOUNDS, strict=True)]
    shape = [1 if other == axis else size for other, size in enumerate(sizes)]
    return edit.insert(node, "Slice", [value, *numbers], source=node.outputs[0], replaces=[node], shape=shape)


def _constant(node: ir.Node, array: Array, name: str) -> ir.Value:
    graph, output = edit.graph_of(node), node.outputs[0]
    return edit.add_initializer(graph, array, name=edit.free_name(graph, f"{output.name}/{name}"), source=output)
