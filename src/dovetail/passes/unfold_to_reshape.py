"""Rewrite windows that do not overlap, exported as Gather (unfold) and Col2Im (fold), as Reshape and Transpose.

Every target supports Reshape and Transpose; few support Col2Im, and Gathers with rank-2 indices produce rank 6. Rows
and columns that are left over at the end of an image are cut off by a Slice, and are a Pad of zeros after the fold.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of, sole_consumer
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.model.windows import Windows, folded_windows, grid_steps
from dovetail.pass_record import PassRecord, Site

Piece = tuple[int, int, int]  # axis of the source, step along it, size


def unfold_to_reshape(model: ir.Model) -> PassRecord:
    """Rewrite Gathers whose indices only divide an axis, or its beginning, and Col2Im of windows side by side."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if is_op(node, "Gather"):
            _cut_remainder(node)
    for node in list(model.graph):
        where = origin_of(node.outputs[0]).name
        if is_op(node, "Gather") and not _continues(node):
            chain, pieces = _gather_chain(node)
            if pieces is not None:
                changed.append(Site(where, f"{len(chain)} Gathers of windows rewritten as Reshape and Transpose"))
                _unfold(chain, pieces)
        elif is_op(node, "Col2Im"):
            windows = folded_windows(node)
            if windows is None or not windows.are_adjacent:
                declined.append(Site(where, "its windows overlap, leave gaps, or are unknown"))
                continue
            changed.append(Site(where, "Col2Im of windows side by side rewritten as Reshape and Transpose"))
            _fold(node, windows)
    return PassRecord("unfold_to_reshape", tuple(changed), tuple(declined))


def _cut_remainder(node: ir.Node) -> None:
    """Let a Gather that divides the beginning of an axis into windows read a Slice with nothing else in it."""
    source, indices, shape = node.inputs[0], constant_of(node.inputs[1]), shape_of(node.inputs[0])
    steps = None if indices is None or indices.ndim < 2 else grid_steps(indices)
    if source is None or shape is None or indices is None or steps is None:
        return
    axis = int(attribute(node, "axis", 0)) % len(shape)
    if indices.size >= shape[axis] or not _covers(steps, indices.shape, indices.size):
        return
    output, graph = node.outputs[0], edit.graph_of(node)
    bounds = [
        edit.add_initializer(graph, np.array([number]), name=f"{output.name}/{name}", source=output)
        for name, number in (("start", 0), ("end", indices.size), ("axis", axis))
    ]
    cut = edit.insert(
        node,
        "Slice",
        [source, *bounds],
        source=output,
        replaces=[],
        shape=(*shape[:axis], indices.size, *shape[axis + 1 :]),
    )
    new = edit.insert(
        node,
        "Gather",
        [cut, node.inputs[1]],
        attributes=dict(node.attributes),
        source=output,
        replaces=[node],
        shape=shape_of(output),
    )
    edit.replace_value(output, new)
    edit.remove_dead(graph, [node])


def _continues(node: ir.Node) -> bool:
    """Whether the only consumer is another Gather of windows, so that both are rewritten together."""
    consumer = sole_consumer(node.outputs[0])
    return consumer is not None and is_op(consumer, "Gather") and _gather_chain(consumer)[1] is not None


def _gather_chain(node: ir.Node) -> tuple[list[ir.Node], list[Piece] | None]:
    """The Gathers up to this one, first to last, and the result's axes as pieces of the axes of their source."""
    source, indices = node.inputs[0], constant_of(node.inputs[1])
    shape = shape_of(source)
    steps = None if indices is None or indices.ndim < 2 else grid_steps(indices)
    if source is None or shape is None or indices is None or steps is None:
        return [node], None
    axis = int(attribute(node, "axis", 0)) % len(shape)
    if not _covers(steps, indices.shape, shape[axis]):
        return [node], None
    above = source.producer()
    chain, pieces = _gather_chain(above) if above is not None and is_op(above, "Gather") else ([], None)
    if pieces is None or sole_consumer(source) is not node or [p[0] for p in pieces].count(pieces[axis][0]) > 1:
        chain, pieces = [], [(number, 1, size) for number, size in enumerate(shape)]
    source_axis = pieces[axis][0]
    parts = [(source_axis, step, size) for step, size in zip(steps, indices.shape, strict=True)]
    return [*chain, node], [*pieces[:axis], *parts, *pieces[axis + 1 :]]


def _covers(steps: tuple[int, ...], sizes: tuple[int, ...], size: int) -> bool:
    """Whether every element of an axis is selected once: the steps are products of the sizes, in some order."""
    expected = 1
    for step, count in sorted(zip(steps, sizes, strict=True)):
        if count > 1 and step != expected:
            return False
        expected *= count
    return expected == size


def _unfold(chain: list[ir.Node], pieces: list[Piece]) -> None:
    source, last = chain[0].inputs[0], chain[-1]
    if source is None:
        raise TypeError(f"an input of node {last.name!r} is missing")
    in_memory = sorted(range(len(pieces)), key=lambda i: (pieces[i][0], -pieces[i][1]))
    value = insert_step(last, source, Step("Reshape", tuple(pieces[i][2] for i in in_memory)), replaces=chain)
    perm = tuple(in_memory.index(i) for i in range(len(pieces)))
    value = insert_step(last, value, Step("Transpose", perm), replaces=chain)
    edit.replace_value(last.outputs[0], value)
    edit.remove_dead(edit.graph_of(last), [last])


def _fold(node: ir.Node, windows: Windows) -> None:
    source, output, shape = node.inputs[0], node.outputs[0], shape_of(node.inputs[0])
    if source is None or shape is None:
        raise TypeError(f"an input of node {node.name!r} is missing")
    kernel, (rows, columns) = windows.kernel, windows.positions
    batch, channels = shape[0], shape[1] // math.prod(kernel)
    steps = (
        Step("Reshape", (batch, channels, *kernel, rows, columns)),
        Step("Transpose", (0, 1, 4, 2, 5, 3)),
        Step("Reshape", (batch, channels, rows * kernel[0], columns * kernel[1])),
    )
    value = source
    for step in steps:
        value = insert_step(node, value, step, replaces=[node])
    missing = [
        size - covered for size, covered in zip(windows.image, (rows * kernel[0], columns * kernel[1]), strict=True)
    ]
    if any(missing):
        pads = np.array([0] * 6 + missing)
        amounts = edit.add_initializer(edit.graph_of(node), pads, name=f"{output.name}/pads", source=output)
        value = edit.insert(
            node, "Pad", [value, amounts], source=output, replaces=[node], shape=(batch, channels, *windows.image)
        )
    edit.replace_value(output, value)
    edit.remove_dead(edit.graph_of(node), [node])
