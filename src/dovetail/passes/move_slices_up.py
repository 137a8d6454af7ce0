"""Compute only the rows that are used: move Slices before the operators that produce their input.

A classifier uses its class token, one row of 197, so most of its last block is computed for nothing: queries,
attention, projection and feed-forward network are computed row by row. The ranges of the remaining tensors are
narrower, too, because unused rows no longer count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dovetail.model import edit, origin
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.elementwise import ELEMENTWISE
from dovetail.model.layout import perm_of
from dovetail.model.slices import slice_ranges
from dovetail.pass_record import PassRecord, Site

# The largest part of an axis that a Slice may keep: cropping a border is not worth a Slice in every branch.
_MAX_KEPT = 0.5
# Operators that targets fuse with a Relu after them.
_FUSED_WITH_RELU = ("Add", "Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class _Range:
    """The used indices of an axis: from ``start`` up to, not including, ``end``."""

    axis: int
    start: int
    end: int

    def sliced(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[: self.axis], self.end - self.start, *shape[self.axis + 1 :])


def move_slices_up(model: ir.Model) -> PassRecord:
    """Move every Slice that keeps at most half of an axis before a node that has no other consumers.

    Several Slices of the same range count as one. Nodes are visited from last to first, so that a moved Slice can be
    moved further.
    """
    changed: list[Site] = []
    for node in reversed(list(model.graph)):
        used = _used_range(node)
        axes = None if used is None else _axes_of_inputs(node, used.axis)
        if used is None or axes is None or _breaks_fusion(node, axes):
            continue
        where = origin.origin_of(node.outputs[0]).name
        _move(model.graph, node, used, axes)
        changed.append(Site(where, f"computed only for indices {used.start} to {used.end} of axis {used.axis}"))
    return PassRecord("move_slices_up", tuple(changed))


def _breaks_fusion(node: ir.Node, axes: dict[int, int]) -> bool:
    """Whether the Slice would separate a Relu or Clip from the layer that it is fused with, which cannot be sliced."""
    layer = node.inputs[0].producer() if is_op(node, "Clip", "Relu") and node.inputs[0] is not None else None
    return layer is not None and is_op(layer, *_FUSED_WITH_RELU) and _axes_of_inputs(layer, axes[0]) is None


def _used_range(node: ir.Node) -> _Range | None:
    """The one range that all consumers of a node select; None if they differ, are not Slices, or keep too much."""
    value = node.outputs[0]
    shape, consumers = shape_of(value), [use.node for use in value.uses()]
    if len(node.outputs) != 1 or shape is None or not consumers or value.is_graph_output():
        return None
    ranges = {_slice_range(consumer) if consumer.inputs[0] is value else None for consumer in consumers}
    used = ranges.pop()
    if ranges or used is None or used.end - used.start > _MAX_KEPT * shape[used.axis]:
        return None
    return used


def _slice_range(node: ir.Node) -> _Range | None:
    """The range that a node selects, if it is a Slice of one axis with step 1."""
    ranges = slice_ranges(node) if is_op(node, "Slice") else None
    if ranges is None or len(ranges) != 1:
        return None
    ((axis, indices),) = ranges.items()
    return _Range(axis, indices.start, indices.stop) if indices.step == 1 and len(indices) else None


def _axes_of_inputs(node: ir.Node, axis: int) -> dict[int, int] | None:
    """Input -> the axis that the output axis comes from; None if a slice of the output needs more of the inputs."""
    shapes, out = [shape_of(value) for value in node.inputs], shape_of(node.outputs[0]) or ()
    if any(shape is None and value is not None for shape, value in zip(shapes, node.inputs, strict=True)):
        return None
    first = shapes[0] or ()
    if is_op(node, "Clip"):
        return {0: axis}
    if is_op(node, *ELEMENTWISE):
        return _broadcast([shape or () for shape in shapes], len(out), axis)
    if is_op(node, "Softmax", "LayerNormalization"):
        along = int(attribute(node, "axis", -1)) % len(first)
        independent = axis < along if node.op_type == "LayerNormalization" else axis != along
        # A scale or bias that has more than the normalized axes would have to be sliced too.
        wide = any(len(shape or ()) > len(first) - along for shape in shapes[1:])
        return {0: axis} if independent and not wide else None
    if is_op(node, "Transpose"):
        return {0: perm_of(node)[axis]}
    if is_op(node, "Reshape"):
        return _reshape_axis(first, out, axis)
    if is_op(node, "Gemm"):
        added = shapes[2] if len(shapes) > 2 else None
        plain = axis == 0 and not attribute(node, "transA", 0)
        return {0: 0} if plain and (added is None or len(added) < 2 or added[0] == 1) else None
    if is_op(node, "MatMul"):
        return _matmul_axes(first, shapes[1] or (), len(out), axis)
    return None


def _broadcast(shapes: list[tuple[int, ...]], rank: int, axis: int) -> dict[int, int]:
    """The axis in every input that has it; inputs that are broadcast along it are used whole."""
    axes = {index: axis - (rank - len(shape)) for index, shape in enumerate(shapes)}
    return {index: own for index, own in axes.items() if own >= 0 and shapes[index][own] > 1}


def _reshape_axis(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> dict[int, int] | None:
    """The axis before a Reshape that has the same size, with as many elements after it."""
    inner = math.prod(after[axis + 1 :])
    axes = [i for i, size in enumerate(before) if size == after[axis] and math.prod(before[i + 1 :]) == inner]
    return {0: axes[0]} if axes else None


def _matmul_axes(first: tuple[int, ...], second: tuple[int, ...], rank: int, axis: int) -> dict[int, int] | None:
    """Rows come from the first operand, batch axes from both; columns are not sliced."""
    if min(len(first), len(second)) < 2 or axis == rank - 1:
        return None
    return {0: len(first) - 2} if axis == rank - 2 else _broadcast([first, second], rank, axis)


def _move(graph: ir.Graph, node: ir.Node, used: _Range, axes: dict[int, int]) -> None:
    old = node.outputs[0]
    slices = list(dict.fromkeys(use.node for use in old.uses()))
    inputs, sliced = list(node.inputs), dict[tuple[ir.Value | None, int], ir.Value]()
    for index, axis in axes.items():
        key = (node.inputs[index], axis)
        if key not in sliced:
            sliced[key] = _slice_input(graph, node, index, _Range(axis, used.start, used.end))
        inputs[index] = sliced[key]
    shape = used.sliced(shape_of(old) or ())
    if is_op(node, "Reshape"):
        target = np.array(shape, np.int64)
        inputs[1] = edit.add_initializer(graph, target, name=f"{old.name}/part_shape", source=old)
    attributes = {name: attr for name, attr in node.attributes.items() if name != "allowzero"}
    new = edit.insert(
        node, node.op_type, inputs, attributes=attributes, source=old, replaces=[node, *slices], shape=shape,
        dtype=old.dtype,
    )  # fmt: skip
    for slice_node in slices:
        edit.replace_value(slice_node.outputs[0], new)
    # The full tensor is gone: its slice takes over its origin, for plans and for the qparams of other tools.
    take_over = origin.add_alias if origin.origin_of(new).exact else origin.carry
    take_over(new, old)
    edit.remove_dead(graph, slices)


def _slice_input(graph: ir.Graph, node: ir.Node, index: int, used: _Range) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise TypeError(f"node {node.name!r} has no input {index}")
    array = constant_of(value)
    if array is not None:
        part = np.take(array, range(used.start, used.end), axis=used.axis)
        return edit.add_initializer(graph, part, name=f"{value.name}/part", source=value)
    bounds = [
        edit.add_initializer(graph, np.array([number], np.int64), name=f"{value.name}/{name}", source=value)
        for name, number in (("start", used.start), ("end", used.end), ("axis", used.axis))
    ]
    shape = used.sliced(shape_of(value) or ())
    return edit.insert(node, "Slice", [value, *bounds], source=value, replaces=[], shape=shape)
