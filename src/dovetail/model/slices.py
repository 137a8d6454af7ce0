"""What a Slice takes."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model.edit import constant_of, shape_of

# What XNNPACK takes, where an axis that is taken apart makes one more.
MOST_AXES = 6


def cuts_of(node: ir.Node) -> dict[int, range] | None:
    """The places that a Slice takes along every axis that it names; None where its shape or bounds are not known."""
    shape, given = shape_of(node.inputs[0]), node.inputs[1:]
    numbers = [constant_of(value) for value in given]
    if shape is None or any(array is None and value is not None for array, value in zip(numbers, given, strict=True)):
        return None
    starts, ends, axes, steps = ([] if array is None else array.tolist() for array in (*numbers, None, None)[:4])
    along = [int(axis) % len(shape) for axis in axes] if axes else range(len(starts))
    bounds = zip(starts, ends, steps or [1] * len(starts), strict=True)
    return {axis: range(shape[axis])[slice(*bound)] for axis, bound in zip(along, bounds, strict=True)}


def takes_one_of_each(size: int, taken: range) -> bool:
    """Whether a cut with steps takes one element of each so many, with none left over."""
    return taken.step > 1 and size % taken.step == 0 and len(taken) == size // taken.step
