"""The elements that a Slice selects."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model.edit import constant_of, shape_of

# The highest rank that XNNPACK accepts; reshaping one axis into two raises the rank by one.
MOST_AXES = 6


def slice_ranges(node: ir.Node) -> dict[int, range] | None:
    """The indices that a Slice selects along every axis that it names; None if its shape or bounds are unknown."""
    shape, inputs = shape_of(node.inputs[0]), node.inputs[1:]
    arrays = [constant_of(value) for value in inputs]
    if shape is None or any(array is None and value is not None for array, value in zip(arrays, inputs, strict=True)):
        return None
    starts, ends, axes, steps = ([] if array is None else array.tolist() for array in (*arrays, None, None)[:4])
    along = [int(axis) % len(shape) for axis in axes] if axes else range(len(starts))
    bounds = zip(starts, ends, steps or [1] * len(starts), strict=True)
    return {axis: range(shape[axis])[slice(*bound)] for axis, bound in zip(along, bounds, strict=True)}


def selects_one_per_step(size: int, indices: range) -> bool:
    """Whether a strided range selects one element of every ``step`` elements, with no remainder."""
    return indices.step > 1 and size % indices.step == 0 and len(indices) == size // indices.step
