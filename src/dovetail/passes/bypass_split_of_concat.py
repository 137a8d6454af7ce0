"""Bypass a Split that takes a Concat apart again: the boxes and the class scores of a detection head.

YOLOv8 concatenates the boxes and scores of each level, flattens them, concatenates the levels and splits the result
into boxes and scores. Quantized inputs of a Concat share one scale, so the wider one of the two makes the other one
coarser. Flattened and concatenated separately, each has a scale of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, is_op, shape_of, sole_consumer
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def bypass_split_of_concat(model: ir.Model) -> PassRecord:
    """Connect the consumers of a Split to the inputs of a Concat of the same sizes.

    Between the two there may be Reshapes that keep the axis and Concats of other axes: there is then one of them for
    each part. What has another consumer is not taken apart.
    """
    changed: list[Site] = []
    for node in list(model.graph):
        shapes = [shape_of(output) for output in node.outputs] if is_op(node, "Split") else []
        source = node.inputs[0] if shapes else None
        if source is None or len(shapes) < 2 or any(shape is None for shape in shapes):
            continue
        axis = int(attribute(node, "axis", 0)) % len(shapes[0] or ())
        sizes = [(shape or ())[axis] for shape in shapes]
        if not _was_concatenated(source, axis, sizes):
            continue
        where = origin_of(node.outputs[0]).name
        for output, part in zip(list(node.outputs), _parts(node, source, axis, sizes), strict=True):
            edit.replace_value(output, part)
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, "computed without the Concat that the Split took apart"))
    return PassRecord("bypass_split_of_concat", tuple(changed))


def _was_concatenated(value: ir.Value, axis: int, sizes: Sequence[int]) -> bool:
    """Whether a tensor, for one consumer, was put together along this axis from parts of these sizes."""
    node, shape = value.producer(), shape_of(value)
    if node is None or shape is None or sole_consumer(value) is None or None in node.inputs:
        return False
    if is_op(node, "Concat"):
        if int(attribute(node, "axis", 0)) % len(shape) == axis:
            return [(shape_of(part) or (0,) * len(shape))[axis] for part in node.inputs] == list(sizes)
        return all(part is not None and _was_concatenated(part, axis, sizes) for part in node.inputs)
    kept = _axis_before(node, axis) if is_op(node, "Reshape") else None
    return kept is not None and node.inputs[0] is not None and _was_concatenated(node.inputs[0], kept, sizes)


def _axis_before(node: ir.Node, axis: int) -> int | None:
    """The axis before a Reshape that is this axis after it: of the same size, with as much around it."""
    before, after = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if before is None or after is None:
        return None
    outer = math.prod(after[:axis])
    axes = [i for i, size in enumerate(before) if size == after[axis] and math.prod(before[:i]) == outer]
    return axes[0] if axes else None


def _parts(before: ir.Node, value: ir.Value, axis: int, sizes: Sequence[int]) -> list[ir.Value]:
    """The parts that a tensor was put together from, each with the Reshapes and Concats after it."""
    node, shape = value.producer(), shape_of(value) or ()
    if node is None:
        raise TypeError(f"{value.name!r} has no producer")
    inputs = [part for part in node.inputs if part is not None]
    if is_op(node, "Reshape"):
        kept = _axis_before(node, axis)
        parts = _parts(before, inputs[0], axis if kept is None else kept, sizes)
        steps = [Step("Reshape", (*shape[:axis], size, *shape[axis + 1 :])) for size in sizes]
        return [insert_step(before, part, step, replaces=[node]) for part, step in zip(parts, steps, strict=True)]
    if int(attribute(node, "axis", 0)) % len(shape) == axis:
        return inputs
    rows = zip(*(_parts(before, part, axis, sizes) for part in inputs), strict=True)
    return [
        edit.insert(
            before,
            "Concat",
            row,
            attributes=dict(node.attributes),
            source=value,
            replaces=[node],
            shape=(*shape[:axis], size, *shape[axis + 1 :]),
        )
        for row, size in zip(rows, sizes, strict=True)
    ]
