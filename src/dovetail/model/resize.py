"""Which places of its input a Resize reads."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model.edit import attribute, constant_of, graph_of, is_op, shape_of
from dovetail.model.evaluate import EvaluationError, evaluate

_ROUNDING = 1e-4


def positions_of(node: ir.Node) -> dict[int, Array] | None:
    """Axis -> the position in the input of every element along it, as ONNX Runtime computes them.

    They are whole numbers for ``nearest``; between two elements ``linear`` interpolates. The Resize of a tensor whose
    elements are their own positions along an axis gives them. Axes that do not change are left out. None if the shapes
    or sizes are not known, and for the modes that do not read positions: cubic, antialias, cropping.
    """
    source = node.inputs[0]
    before, after = shape_of(source), shape_of(node.outputs[0])
    constants = {str(value.name): constant_of(value) for value in node.inputs[1:] if value is not None}
    known = {name: array for name, array in constants.items() if array is not None}
    if source is None or before is None or after is None or 0 in (*before, *after) or len(known) < len(constants):
        return None
    if not _reads_positions(node):
        return None
    positions: dict[int, Array] = {}
    for axis, (size, new) in enumerate(zip(before, after, strict=True)):
        ramp = np.arange(size, dtype=np.float32).reshape([-1 if other == axis else 1 for other in range(len(before))])
        try:
            (read,) = evaluate(
                node, {str(source.name): np.broadcast_to(ramp, before), **known}, graph_of(node).opset_imports
            )
        except EvaluationError:
            return None
        row = np.moveaxis(read, axis, 0).reshape(new, -1)[:, 0]
        row = np.where(np.abs(row - np.rint(row)) < _ROUNDING, np.rint(row), row)  # a weighted mean of equal numbers
        if size != new or not np.array_equal(row, np.arange(size)):
            positions[axis] = row
    return positions


def _reads_positions(node: ir.Node) -> bool:
    return (
        is_op(node, "Resize")
        and attribute(node, "mode", "nearest") in ("nearest", "linear")
        and not attribute(node, "antialias", 0)
        and not attribute(node, "exclude_outside", 0)
        and attribute(node, "coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"
        and node.inputs[0] is not None
        and node.inputs[0].dtype == ir.DataType.FLOAT
    )
