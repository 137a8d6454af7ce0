"""Cut tensors before they are worked on, where only a part of the result is read.

A classifier reads its class token, one row of 197, so that most of its last block is computed for nobody: queries,
attention, projection and feed-forward part are row by row. The ranges of what is left are narrower, too: rows that
nobody reads no longer count.
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
from dovetail.model.slices import cuts_of
from dovetail.pass_record import PassRecord, Site

# Of an axis, what is read at most: borders that are cut off are not worth a Slice in every branch.
_PART = 0.5
# What targets run together with a Relu behind it.
_CLAMPED = ("Add", "Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class _Cut:
    """What is read of an axis: from ``start`` up to ``end``."""

    axis: int
    start: int
    end: int

    def of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[: self.axis], self.end - self.start, *shape[self.axis + 1 :])


def slice_early(model: ir.Model) -> PassRecord:
    """Move every Slice that leaves at most half of an axis in front of what only it, and its like, read.

    From the last node to the first: what is moved in front of one node is moved on from there.
    """
    changed: list[Site] = []
    for node in reversed(list(model.graph)):
        cut = _read_of(node)
        axes = None if cut is None else _axes_of_inputs(node, cut.axis)
        if cut is None or axes is None or _breaks_up(node, axes):
            continue
        where = origin.origin_of(node.outputs[0]).name
        _move(model.graph, node, cut, axes)
        changed.append(Site(where, f"computed for {cut.start} to {cut.end} of axis {cut.axis} only"))
    return PassRecord("slice_early", tuple(changed))


def _breaks_up(node: ir.Node, axes: dict[int, int]) -> bool:
    """Whether a layer and the clamp behind it, which run as one, would come apart: the layer cannot be cut so."""
    layer = node.inputs[0].producer() if is_op(node, "Clip", "Relu") and node.inputs[0] is not None else None
    return layer is not None and is_op(layer, *_CLAMPED) and _axes_of_inputs(layer, axes[0]) is None


def _read_of(node: ir.Node) -> _Cut | None:
    """The one part of a node's result that is read, by however many Slices; None where more is read, or too much."""
    value = node.outputs[0]
    shape, readers = shape_of(value), [use.node for use in value.uses()]
    if len(node.outputs) != 1 or shape is None or not readers or value.is_graph_output():
        return None
    cuts = {_cut(reader) if reader.inputs[0] is value else None for reader in readers}
    cut = cuts.pop()
    if cuts or cut is None or cut.end - cut.start > _PART * shape[cut.axis]:
        return None
    return cut


def _cut(node: ir.Node) -> _Cut | None:
    """What a node takes, if it is a Slice along one axis without steps."""
    cuts = cuts_of(node) if is_op(node, "Slice") else None
    if cuts is None or len(cuts) != 1:
        return None
    ((axis, taken),) = cuts.items()
    return _Cut(axis, taken.start, taken.stop) if taken.step == 1 and len(taken) else None


def _axes_of_inputs(node: ir.Node, axis: int) -> dict[int, int] | None:
    """Which axis of which inputs the axis of the result is; None where a part of the result needs more of them."""
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
        alone = axis < along if node.op_type == "LayerNormalization" else axis != along
        wide = any(len(shape or ()) > len(first) - along for shape in shapes[1:])  # factors for more than is normalized
        return {0: axis} if alone and not wide else None
    if is_op(node, "Transpose"):
        return {0: perm_of(node)[axis]}
    if is_op(node, "Reshape"):
        return _kept(first, out, axis)
    if is_op(node, "Gemm"):
        added = shapes[2] if len(shapes) > 2 else None
        plain = axis == 0 and not attribute(node, "transA", 0)
        return {0: 0} if plain and (added is None or len(added) < 2 or added[0] == 1) else None
    if is_op(node, "MatMul"):
        return _product(first, shapes[1] or (), len(out), axis)
    return None


def _broadcast(shapes: list[tuple[int, ...]], rank: int, axis: int) -> dict[int, int]:
    """Inputs that are repeated along an axis are read whole."""
    places = {index: axis - (rank - len(shape)) for index, shape in enumerate(shapes)}
    return {index: place for index, place in places.items() if place >= 0 and shapes[index][place] > 1}


def _kept(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> dict[int, int] | None:
    """The axis in front of a Reshape that is as long, with as many elements behind it."""
    inner = math.prod(after[axis + 1 :])
    places = [i for i, size in enumerate(before) if size == after[axis] and math.prod(before[i + 1 :]) == inner]
    return {0: places[0]} if places else None


def _product(one: tuple[int, ...], other: tuple[int, ...], rank: int, axis: int) -> dict[int, int] | None:
    """Rows come from the first operand, all axes in front of them from both; columns are left alone."""
    if min(len(one), len(other)) < 2 or axis == rank - 1:
        return None
    return {0: len(one) - 2} if axis == rank - 2 else _broadcast([one, other], rank, axis)


def _move(graph: ir.Graph, node: ir.Node, cut: _Cut, axes: dict[int, int]) -> None:
    old = node.outputs[0]
    readers = list(dict.fromkeys(use.node for use in old.uses()))
    inputs, parts = list(node.inputs), dict[tuple[ir.Value | None, int], ir.Value]()
    for index, axis in axes.items():
        key = (node.inputs[index], axis)
        if key not in parts:
            parts[key] = _cut_input(graph, node, index, _Cut(axis, cut.start, cut.end))
        inputs[index] = parts[key]
    shape = cut.of(shape_of(old) or ())
    if is_op(node, "Reshape"):
        numbers = np.array(shape, np.int64)
        inputs[1] = edit.add_initializer(graph, numbers, name=f"{old.name}/part_shape", source=old)
    attributes = {name: attr for name, attr in node.attributes.items() if name != "allowzero"}
    new = edit.insert(
        node, node.op_type, inputs, attributes=attributes, source=old, replaces=[node, *readers], shape=shape,
        dtype=old.dtype,
    )  # fmt: skip
    for reader in readers:
        edit.replace_value(reader.outputs[0], new)
    # The whole is gone: its part answers for it, to a plan and to another tool's numbers.
    take_over = origin.add_alias if origin.origin_of(new).exact else origin.carry
    take_over(new, old)
    edit.remove_dead(graph, readers)


def _cut_input(graph: ir.Graph, node: ir.Node, index: int, cut: _Cut) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise TypeError(f"{node.name!r} has no input {index}")
    array = constant_of(value)
    if array is not None:
        part = np.take(array, range(cut.start, cut.end), axis=cut.axis)
        return edit.add_initializer(graph, part, name=f"{value.name}/part", source=value)
    bounds = [
        edit.add_initializer(graph, np.array([number], np.int64), name=f"{value.name}/{name}", source=value)
        for name, number in (("start", cut.start), ("end", cut.end), ("axis", cut.axis))
    ]
    shape = cut.of(shape_of(value) or ())
    return edit.insert(node, "Slice", [value, *bounds], source=value, replaces=[], shape=shape)
