"""Split, Gather of indices that follow each other, and Slice over several axes or with steps, as plain Slices.

These are the one way of cutting that XNNPACK takes. Outside it (executorch 1.5.1) stay ``split_with_sizes_copy`` and
``select_copy``, which also read integers back first; a slice of torch has one axis, so between two of them there must
be a tensor that can be stored in integers. Every second element is a Slice too, of an axis of two.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.model.slices import MOST_AXES, cuts_of, takes_one_of_each
from dovetail.pass_record import PassRecord, Site


def cut_as_slices(model: ir.Model) -> PassRecord:
    """Write every such cut as Slices along one axis, and a Reshape where the axis disappears."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Split", "Gather", "Slice"):
            continue
        where = origin_of(node.outputs[0]).name
        if node.op_type == "Slice":
            cuts = cuts_of(node)
            reason = _obstacle(node, cuts)
            if reason or cuts is None:
                declined.append(Site(where, reason))
            elif not _is_plain(cuts):
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


def _obstacle(node: ir.Node, cuts: dict[int, range] | None) -> str:
    if cuts is None:
        return "its shape or its bounds are not known"
    if not cuts:
        return "it cuts along no axis"
    with_steps = len(cuts) == 1 and not _is_plain(cuts)
    if with_steps and not _can_be_plain(node, *next(iter(cuts.items()))):
        return "its steps go backwards, or do not divide the axis"
    return ""


def _is_plain(cuts: dict[int, range]) -> bool:
    """Whether a Slice is along one axis without steps."""
    return len(cuts) == 1 and all(taken.step == 1 for taken in cuts.values())


def _can_be_plain(node: ir.Node, axis: int, taken: range) -> bool:
    """Whether an axis can be taken apart so that a cut with steps has none."""
    shape = shape_of(node.inputs[0]) or ()
    return takes_one_of_each(shape[axis], taken) and len(shape) < MOST_AXES


def _one_axis_each(graph: ir.Graph, node: ir.Node, cuts: dict[int, range]) -> int:
    """Write a Slice as one per axis that it shortens or turns; how many that are."""
    part, value = node.outputs[0], node.inputs[0]
    shape = shape_of(value) or ()
    kept = [axis for axis, taken in cuts.items() if taken != range(shape[axis])] or list(cuts)[:1]
    for axis in kept:
        taken, before, behind = cuts[axis], shape[:axis], shape[axis + 1 :]
        size, shape = shape[axis], (*before, len(taken), *behind)
        if value is None or not _can_be_plain(node, axis, taken):
            value = _insert(graph, node, value, axis, taken, shape, size)
            continue
        apart = Step("Reshape", (*before, len(taken), taken.step, *behind))
        value = insert_step(node, value, apart, replaces=[])
        one = range(taken.start, taken.start + 1)
        value = _insert(graph, node, value, axis + 1, one, (*before, len(taken), 1, *behind), taken.step)
        value = insert_step(node, value, Step("Reshape", shape), replaces=[])
    if value is not None:
        edit.replace_value(part, value)
        edit.remove_dead(graph, [node])
    return len(kept)


def _insert(
    graph: ir.Graph, node: ir.Node, value: ir.Value | None, axis: int, taken: range, shape: tuple[int, ...], size: int
) -> ir.Value:
    """A Slice along an axis of ``size``, in front of the node that it is a part of."""
    part = node.outputs[0]
    end = taken.stop if taken.stop >= 0 else -size - 1  # in front of the first, for steps that go backwards
    bounds = [
        edit.add_initializer(graph, np.array([number], np.int64), name=f"{part.name}/{name}", source=part)
        for name, number in (("start", taken.start), ("end", end), ("axis", axis), ("step", taken.step))
    ]
    return edit.insert(node, "Slice", [value, *bounds], source=part, replaces=[node], shape=shape)


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
