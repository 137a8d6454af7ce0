"""Write a nearest Resize as Gathers of rows and columns, or as a Resize that repeats every element equally often."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.evaluate import EvaluationError, evaluate
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def _always(node: ir.Node) -> bool:
    return True


def nearest_resize_to_gather(model: ir.Model, applies: Callable[[ir.Node], bool] = _always) -> PassRecord:
    """Rewrite the nearest Resizes for which ``applies`` is true; the elements that they select do not change."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Resize") or attribute(node, "mode", "nearest") != "nearest" or not applies(node):
            continue
        output = node.outputs[0]
        where = origin_of(output).name
        indices = _indices(node, model.opset_imports)
        if indices is None:
            declined.append(Site(where, "its shape or sizes are unknown, or it extrapolates"))
            continue
        factors = _factors(indices, shape_of(node.inputs[0]) or ())
        value = _gathered(node, indices) if factors is None else _repeated(node, factors)
        edit.replace_value(output, value)
        edit.remove_dead(model.graph, [node])
        form = "Gathers of rows and columns" if factors is None else "Resize that repeats every element"
        changed.append(Site(where, f"nearest Resize rewritten as {form}"))
    return PassRecord("nearest_resize_to_gather", tuple(changed), tuple(declined))


def _indices(node: ir.Node, opsets: Mapping[str, int]) -> dict[int, Array] | None:
    """Axis -> the index of every element that the Resize selects along it, as ONNX Runtime computes them.

    The Resize of a tensor whose elements are their own indices along an axis gives these indices.
    """
    source, output = node.inputs[0], node.outputs[0]
    before, after = shape_of(source), shape_of(output)
    constants = {str(value.name): constant_of(value) for value in node.inputs[1:] if value is not None}
    known = {name: array for name, array in constants.items() if array is not None}
    if source is None or source.dtype is None or before is None or after is None or len(known) < len(constants):
        return None
    if 0 in before or attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return None
    indices: dict[int, Array] = {}
    for axis, (size, new) in enumerate(zip(before, after, strict=True)):
        ramp = np.arange(size).reshape([-1 if other == axis else 1 for other in range(len(before))])
        inputs = {str(source.name): np.broadcast_to(ramp, before).astype(source.dtype.numpy()), **known}
        try:
            (selected,) = evaluate(node, inputs, opsets)
        except EvaluationError:
            return None
        row = np.moveaxis(selected, axis, 0).reshape(new, -1)[:, 0].astype(np.int64)
        if size != new or not np.array_equal(row, np.arange(size)):
            indices[axis] = row
    return indices


def _factors(indices: Mapping[int, Array], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """How often every element is repeated along each axis; None if it is not a whole number or not the same for all."""
    factors = [1] * len(shape)
    for axis, row in indices.items():
        factors[axis] = len(row) // shape[axis]
        if not np.array_equal(row, np.repeat(np.arange(shape[axis]), factors[axis])):
            return None
    return tuple(factors)


def _repeated(node: ir.Node, factors: tuple[int, ...]) -> ir.Value:
    """A Resize by whole factors in the form that rounds nothing: index = floor(position / factor)."""
    output = node.outputs[0]
    scales = np.array(factors, np.float32)
    scales_value = edit.add_initializer(edit.graph_of(node), scales, name=f"{output.name}/scales", source=output)
    return edit.insert(
        node,
        "Resize",
        [node.inputs[0], None, scales_value],
        attributes={"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        source=output,
        replaces=[node],
        shape=shape_of(output),
    )


def _gathered(node: ir.Node, indices: Mapping[int, Array]) -> ir.Value:
    value, output = node.inputs[0], node.outputs[0]
    if value is None:
        raise TypeError(f"node {node.name!r} has no input")
    for axis, row in indices.items():
        selected = edit.add_initializer(edit.graph_of(node), row, name=f"{output.name}/indices", source=output)
        shape = list(shape_of(value) or ())
        shape[axis] = len(row)
        value = edit.insert(
            node,
            "Gather",
            [value, selected],
            attributes={"axis": axis},
            source=output,
            replaces=[node],
            shape=shape,
        )
    return value
