"""Split, Gather of indices that follow each other, and Slice over several axes, as Slices of one axis.

These are the one way of cutting that XNNPACK takes. Outside it (executorch 1.5.1) stay ``split_with_sizes_copy`` and
``select_copy``, which also read integers back first; a slice of torch has one axis, so between two of them there must
be a tensor that can be stored in integers.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def cut_as_slices(model: ir.Model) -> PassRecord:
    """Write every such cut as Slices along one axis, and a Reshape where the axis disappears."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Split", "Gather") and not _is_over_axes(node):
            continue
        where = origin_of(node.outputs[0]).name
        if node.op_type == "Slice":
            cuts = _cuts(node)
            if isinstance(cuts, str):
                declined.append(Site(where, cuts))
                continue
            changed.append(Site(where, f"Slice made {_one_axis_each(model.graph, node, cuts)} Slice"))
            continue
        runs = _split_runs(node) if node.op_type == "Split" else _gather_run(node)
        if isinstance(runs, str):
            declined.append(Site(where, runs))
            continue
        for (start, end), part in zip(runs, list(node.outputs), strict=True):
            edit.replace_value(part, _slice(model.graph, node, part, start, end))
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, f"{node.op_type} made {len(runs)} Slice"))
    return PassRecord("cut_as_slices", tuple(changed), tuple(declined))


def _is_over_axes(node: ir.Node) -> bool:
    return is_op(node, "Slice") and shape_of(node.inputs[1]) != (1,)


def _cuts(node: ir.Node) -> dict[int, tuple[int, int, int]] | str:
    """What a Slice takes along every axis that it names: start, end and step, as they are given."""
    shape = shape_of(node.inputs[0])
    numbers = [constant_of(value) for value in node.inputs[1:]]
    absent = [value is None for value in node.inputs[1:]]
    if shape is None or any(array is None and not gone for array, gone in zip(numbers, absent, strict=True)):
        return "its shape or its bounds are not known"
    starts, ends, axes, steps = ([] if array is None else array.tolist() for array in (*numbers, None, None)[:4])
    along = [int(axis) % len(shape) for axis in axes] if axes else range(len(starts))
    if not starts:
        return "it cuts along no axis"
    return dict(zip(along, zip(starts, ends, steps or [1] * len(starts), strict=True), strict=True))


def _one_axis_each(graph: ir.Graph, node: ir.Node, cuts: dict[int, tuple[int, int, int]]) -> int:
    """Write a Slice as one per axis that it shortens or turns; how many that are."""
    part, value = node.outputs[0], node.inputs[0]
    shape = list(shape_of(value) or ())
    taken = {axis: range(shape[axis])[slice(*cut)] for axis, cut in cuts.items()}
    kept = [axis for axis, chosen in taken.items() if chosen != range(shape[axis])] or list(taken)[:1]
    for axis in kept:
        shape[axis] = len(taken[axis])
        bounds = [
            edit.add_initializer(graph, np.array([number], np.int64), name=f"{part.name}/{name}", source=part)
            for name, number in zip(("start", "end", "axis", "step"), _ordered(axis, cuts[axis]), strict=True)
        ]
        value = edit.insert(node, "Slice", [value, *bounds], source=part, replaces=[node], shape=shape)
    if value is not None:
        edit.replace_value(part, value)
        edit.remove_dead(graph, [node])
    return len(kept)


def _ordered(axis: int, cut: tuple[int, int, int]) -> tuple[int, int, int, int]:
    start, end, step = cut
    return start, end, axis, step


def _axis(node: ir.Node) -> int:
    return int(attribute(node, "axis", 0)) % len(shape_of(node.inputs[0]) or (1,))


def _split_runs(node: ir.Node) -> list[tuple[int, int]] | str:
    shapes = [shape_of(part) for part in node.outputs]
    if shape_of(node.inputs[0]) is None or any(shape is None for shape in shapes):
        return "the sizes of its parts are not known"
    ends = list(itertools.accumulate((shape or ())[_axis(node)] for shape in shapes))
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _gather_run(node: ir.Node) -> list[tuple[int, int]] | str:
    shape, indices = shape_of(node.inputs[0]), constant_of(node.inputs[1])
    if shape is None or indices is None or constant_of(node.inputs[0]) is not None:
        return "its indices are not constant, or it looks up a table"
    chosen = indices.reshape(-1) % shape[_axis(node)]
    if not chosen.size or not np.array_equal(chosen, np.arange(chosen[0], chosen[0] + chosen.size)):
        return "its indices do not follow each other"
    return [(int(chosen[0]), int(chosen[0]) + chosen.size)]


def _slice(graph: ir.Graph, node: ir.Node, part: ir.Value, start: int, end: int) -> ir.Value:
    source, axis = node.inputs[0], _axis(node)
    before, after = shape_of(source) or (), shape_of(part)
    bounds = [
        edit.add_initializer(graph, np.array([number], np.int64), name=f"{part.name}/{name}", source=part)
        for name, number in (("start", start), ("end", end), ("axis", axis))
    ]
    shape = (*before[:axis], end - start, *before[axis + 1 :])
    made = edit.insert(node, "Slice", [source, *bounds], source=part, replaces=[node], shape=shape)
    return made if after is None or after == shape else insert_step(node, made, Step("Reshape", after), replaces=[])
