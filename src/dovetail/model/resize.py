"""Which places of its input a Resize reads, and how it weights them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model.edit import attribute, constant_of, graph_of, is_float, is_op, shape_of
from dovetail.model.evaluate import EvaluationError, evaluate

_ROUNDING = 1e-4
_RANK_OF_IMAGES = 4


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


def weights_of(node: ir.Node) -> dict[int, Array] | None:
    """Axis -> [new size, size], how much of every element along it an element of the output is, in any mode.

    The Resize of tensors that are one at a single place along an axis gives them. Axes that do not change are left out.
    None if it is not a float image of known size, or is not such a sum.
    """
    source = node.inputs[0]
    before, after = shape_of(source), shape_of(node.outputs[0])
    known = {str(value.name): array for value in node.inputs[1:] if (array := constant_of(value)) is not None and value}
    if source is None or before is None or after is None or 0 in (*before, *after) or not is_float(source):
        return None
    if len(before) != _RANK_OF_IMAGES or before[:2] != after[:2]:
        return None

    def resized(data: Array) -> Array:
        (result,) = evaluate(node, {str(source.name): data, **known}, graph_of(node).opset_imports)
        return result

    weights: dict[int, Array] = {}
    probe = np.random.default_rng(0).standard_normal(before).astype(np.float32)
    expected = probe
    try:
        for axis in (2, 3):
            matrix = _weights_along(axis, before, after, resized)
            expected = np.moveaxis(np.moveaxis(expected, axis, -1) @ matrix.T, -1, axis)
            if matrix.shape[0] != matrix.shape[1] or not np.allclose(matrix, np.eye(len(matrix)), atol=1e-6):
                weights[axis] = matrix
        is_sum = np.allclose(expected, resized(probe), atol=1e-4)
    except EvaluationError:
        return None
    return weights if is_sum and weights else None


def _weights_along(axis: int, before: Sequence[int], after: Sequence[int], resized: Callable[[Array], Array]) -> Array:
    slots, size = before[0] * before[1], before[axis]
    rows: list[Array] = []
    for start in range(0, size, slots):
        data = np.zeros((slots, *before[2:]), np.float32)
        for slot in range(min(slots, size - start)):
            data[slot][(start + slot,) if axis == 2 else (slice(None), start + slot)] = 1
        result = resized(data.reshape(before)).reshape(slots, *after[2:])
        rows += [result[slot][:, 0] if axis == 2 else result[slot][0] for slot in range(min(slots, size - start))]
    return np.stack(rows, axis=1)


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
