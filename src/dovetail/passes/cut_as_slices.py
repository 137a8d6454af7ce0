"""Split, and Gather of indices that follow each other, as Slices: the one way of cutting that XNNPACK takes.

Outside it (executorch 1.5.1) stay ``split_with_sizes_copy`` and ``select_copy``, which also read integers back first.
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
        if not is_op(node, "Split", "Gather"):
            continue
        where = origin_of(node.outputs[0]).name
        runs = _split_runs(node) if node.op_type == "Split" else _gather_run(node)
        if isinstance(runs, str):
            declined.append(Site(where, runs))
            continue
        for (start, end), part in zip(runs, list(node.outputs), strict=True):
            edit.replace_value(part, _slice(model.graph, node, part, start, end))
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, f"{node.op_type} made {len(runs)} Slice"))
    return PassRecord("cut_as_slices", tuple(changed), tuple(declined))


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
