"""Rewrite Split, Gather of consecutive indices, and Slice over several axes or with steps as plain Slices.

A plain Slice, of one axis and step 1, is the only such operator that XNNPACK delegates. ``split_with_sizes_copy`` and
``select_copy`` stay outside the delegate (executorch 1.5.1), and their inputs are dequantized for it; a slice of torch
has one axis, so between two of them there must be a tensor that can be quantized. Every second element can be selected
by a plain Slice too, of an axis of size 2.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.model.slices import MOST_AXES, selects_one_per_step, slice_ranges
from dovetail.pass_record import PassRecord, Site


def lower_to_slices(model: ir.Model) -> PassRecord:
    """Rewrite every such node as Slices along one axis, and a Reshape where the axis disappears."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Split", "Gather", "Slice"):
            continue
        where = origin_of(node.outputs[0]).name
        if node.op_type == "Slice":
            cuts = slice_ranges(node)
            reason = _obstacle(node, cuts)
            if reason or cuts is None:
                declined.append(Site(where, reason))
            elif not _is_plain(cuts):
                changed.append(
                    Site(where, f"Slice rewritten as plain Slices ({_one_axis_each(model.graph, node, cuts)})")
                )
            continue
        runs = _split_runs(node) if node.op_type == "Split" else _gather_run(node)
        if isinstance(runs, str):
            declined.append(Site(where, runs))
            continue
        for (start, end), output in zip(runs, list(node.outputs), strict=True):
            edit.replace_value(output, _slice(model.graph, node, output, start, end))
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, f"{node.op_type} rewritten as plain Slices ({len(runs)})"))
    return PassRecord("lower_to_slices", tuple(changed), tuple(declined))


def _obstacle(node: ir.Node, cuts: dict[int, range] | None) -> str:
    if cuts is None:
        return "its shape or bounds are unknown"
    if not cuts:
        return "it slices no axis"
    has_step = len(cuts) == 1 and not _is_plain(cuts)
    if has_step and not _can_be_plain(node, *next(iter(cuts.items()))):
        return "its step is negative or does not divide the axis"
    return ""


def _is_plain(cuts: dict[int, range]) -> bool:
    """Whether a Slice has one axis and step 1."""
    return len(cuts) == 1 and all(indices.step == 1 for indices in cuts.values())


def _can_be_plain(node: ir.Node, axis: int, indices: range) -> bool:
    """Whether an axis can be reshaped into two so that a Slice with a step becomes a plain one."""
    shape = shape_of(node.inputs[0]) or ()
    return selects_one_per_step(shape[axis], indices) and len(shape) < MOST_AXES


def _one_axis_each(graph: ir.Graph, node: ir.Node, cuts: dict[int, range]) -> int:
    """Rewrite a Slice as one per axis that it changes, and return their number."""
    output, value = node.outputs[0], node.inputs[0]
    shape = shape_of(value) or ()
    changed_axes = [axis for axis, indices in cuts.items() if indices != range(shape[axis])] or list(cuts)[:1]
    for axis in changed_axes:
        indices, before, after = cuts[axis], shape[:axis], shape[axis + 1 :]
        size, shape = shape[axis], (*before, len(indices), *after)
        if value is None or not _can_be_plain(node, axis, indices):
            value = _insert(graph, node, value, axis, indices, shape, size)
            continue
        split_axis = Step("Reshape", (*before, len(indices), indices.step, *after))
        value = insert_step(node, value, split_axis, replaces=[])
        selected = range(indices.start, indices.start + 1)
        value = _insert(graph, node, value, axis + 1, selected, (*before, len(indices), 1, *after), indices.step)
        value = insert_step(node, value, Step("Reshape", shape), replaces=[])
    if value is not None:
        edit.replace_value(output, value)
        edit.remove_dead(graph, [node])
    return len(changed_axes)


def _insert(
    graph: ir.Graph, node: ir.Node, value: ir.Value | None, axis: int, indices: range, shape: tuple[int, ...], size: int
) -> ir.Value:
    """Insert a Slice along an axis of ``size`` before the node that it replaces."""
    output = node.outputs[0]
    end = indices.stop if indices.stop >= 0 else -size - 1  # before the first element, for negative steps
    bounds = [
        edit.add_initializer(graph, np.array([number], np.int64), name=f"{output.name}/{name}", source=output)
        for name, number in (("start", indices.start), ("end", end), ("axis", axis), ("step", indices.step))
    ]
    return edit.insert(node, "Slice", [value, *bounds], source=output, replaces=[node], shape=shape)


def _axis(node: ir.Node) -> int:
    return int(attribute(node, "axis", 0)) % len(shape_of(node.inputs[0]) or (1,))


def _split_runs(node: ir.Node) -> list[tuple[int, int]] | str:
    shapes = [shape_of(output) for output in node.outputs]
    if shape_of(node.inputs[0]) is None or any(shape is None for shape in shapes):
        return "the sizes of its outputs are unknown"
    ends = list(itertools.accumulate((shape or ())[_axis(node)] for shape in shapes))
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _gather_run(node: ir.Node) -> list[tuple[int, int]] | str:
    shape, indices = shape_of(node.inputs[0]), constant_of(node.inputs[1])
    if shape is None or indices is None or constant_of(node.inputs[0]) is not None:
        return "its indices are not constant, or its data is a constant table"
    selected = indices.reshape(-1) % shape[_axis(node)]
    if not selected.size or not np.array_equal(selected, np.arange(selected[0], selected[0] + selected.size)):
        return "its indices are not consecutive"
    return [(int(selected[0]), int(selected[0]) + selected.size)]


def _slice(graph: ir.Graph, node: ir.Node, output: ir.Value, start: int, end: int) -> ir.Value:
    source, axis = node.inputs[0], _axis(node)
    before, after = shape_of(source) or (), shape_of(output)
    bounds = [
        edit.add_initializer(graph, np.array([number], np.int64), name=f"{output.name}/{name}", source=output)
        for name, number in (("start", start), ("end", end), ("axis", axis))
    ]
    shape = (*before[:axis], end - start, *before[axis + 1 :])
    sliced = edit.insert(node, "Slice", [source, *bounds], source=output, replaces=[node], shape=shape)
    return sliced if after is None or after == shape else insert_step(node, sliced, Step("Reshape", after), replaces=[])
