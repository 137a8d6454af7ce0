"""Merge neighbouring reshapes and transposes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of
from dovetail.passes.record import PassRecord, Site


def merge_layout(model: ir.Model) -> PassRecord:
    """Let the second of two reshapes, or of two transposes, do the work of both.

    A Transpose between two reshapes that undo each other's grouping is one Transpose. The first node stays where
    another reader needs it.
    """
    changed: list[Site] = []
    for node in model.graph:
        what = _merge(model.graph, node)
        if what:
            changed.append(Site(origin_of(node.outputs[0]).name, what))
            edit.remove_dead(model.graph, [node])
    return PassRecord("merge_layout", tuple(changed))


def _merge(graph: ir.Graph, node: ir.Node) -> str:
    first = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    if first is None or not first.inputs:
        return ""
    output, source = node.outputs[0], first.inputs[0]
    if edit.is_op(node, "Reshape") and edit.is_op(first, "Reshape"):
        return _replace(graph, [first, node], source, shape=shape_of(output))
    if edit.is_op(node, "Transpose") and edit.is_op(first, "Transpose"):
        inner, outer = _perm(first), _perm(node)
        if inner is None or outer is None:
            return ""
        return _replace(graph, [first, node], source, perm=[inner[axis] for axis in outer])
    if edit.is_op(node, "Reshape") and edit.is_op(first, "Transpose"):
        reshape = source.producer() if source is not None else None
        if reshape is None or not edit.is_op(reshape, "Reshape"):
            return ""
        perm = _perm_through(shape_of(reshape.inputs[0]), shape_of(source), _perm(first), shape_of(output))
        return "" if perm is None else _replace(graph, [reshape, first, node], reshape.inputs[0], perm=perm)
    return ""


def _replace(
    graph: ir.Graph,
    nodes: Sequence[ir.Node],
    source: ir.Value | None,
    *,
    perm: Sequence[int] | None = None,
    shape: tuple[int, ...] | None = None,
) -> str:
    """Put one node in the place of the last; "" when the shape that it needs is not known."""
    last = nodes[-1]
    output = last.outputs[0]
    inputs, attributes, op_type = [source], {}, "Transpose"
    if perm is None:
        if shape is None or 0 in shape:
            return ""
        sizes = np.array(shape, dtype=np.int64)
        inputs.append(edit.add_initializer(graph, sizes, name=f"{output.name}/shape", source=output))
        op_type = "Reshape"
    else:
        attributes = {"perm": list(perm)}
    new = edit.insert(
        last, op_type, inputs, attributes=attributes, source=output, replaces=nodes, shape=shape_of(output)
    )
    edit.replace_value(output, new)
    return f"{' and '.join(node.op_type for node in nodes)} are one {op_type}"


def _perm(node: ir.Node) -> list[int] | None:
    perm = edit.attribute(node, "perm", None)
    if perm is not None:
        return list(perm)
    shape = shape_of(node.inputs[0])
    return None if shape is None else list(reversed(range(len(shape))))


def _perm_through(
    before: tuple[int, ...] | None,
    inside: tuple[int, ...] | None,
    perm: Sequence[int] | None,
    after: tuple[int, ...] | None,
) -> list[int] | None:
    """The one transpose before -> after that equals Reshape to inside, Transpose by perm, Reshape to after."""
    if before is None or inside is None or perm is None or after is None or len(before) != len(after):
        return None
    groups = _groups(before, inside)
    if groups is None:
        return None
    moved = [axis for inner in perm for axis in groups[inner]]
    if [before[axis] for axis in moved] != [size for size in after if size != 1]:
        return None
    ones = iter(axis for axis, size in enumerate(before) if size == 1)
    rest = iter(moved)
    return [next(ones) if size == 1 else next(rest) for size in after]


def _groups(before: Sequence[int], inside: Sequence[int]) -> list[list[int]] | None:
    """Which axes of ``before``, leaving out those of size one, each axis of ``inside`` is made of."""
    axes = [axis for axis, size in enumerate(before) if size != 1]
    groups: list[list[int]] = []
    for size in inside:
        group: list[int] = []
        while math.prod(before[axis] for axis in group) < size and axes:
            group.append(axes.pop(0))
        if math.prod(before[axis] for axis in group) != size:
            return None
        groups.append(group)
    return None if axes else groups
