"""Write a Resize as Gathers of rows and columns, or as a Resize that repeats every element equally often."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.model.resize import positions_of
from dovetail.pass_record import PassRecord, Site
from dovetail.passes.gather_on_last_axis import insert_gather

Positions = Mapping[int, Array]


def resize_to_gather(model: ir.Model, applies: Callable[[ir.Node], bool] = lambda node: True) -> PassRecord:
    """Rewrite the nearest and linear Resizes for which ``applies`` is true; the elements that they read do not change.

    A linear Resize becomes ``lower + weight * (upper - lower)``, of the two elements around every position.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Resize") or not applies(node):
            continue
        output = node.outputs[0]
        where = origin_of(output).name
        positions = positions_of(node)
        if positions is None:
            declined.append(Site(where, "its shape or sizes are unknown, or it does more than nearest or linear"))
            continue
        factors = _factors(node, positions)
        value = _gathered(node, positions) if factors is None else _repeated(node, factors)
        edit.replace_value(output, value)
        edit.remove_dead(model.graph, [node])
        form = "Gathers of rows and columns" if factors is None else "Resize that repeats every element"
        changed.append(Site(where, f"Resize rewritten as {form}"))
    return PassRecord("resize_to_gather", tuple(changed), tuple(declined))


def _factors(node: ir.Node, positions: Positions) -> tuple[int, ...] | None:
    """How often every element is repeated along each axis; None if that differs between elements."""
    shape = shape_of(node.inputs[0]) or ()
    factors = [1] * len(shape)
    for axis, row in positions.items():
        factors[axis] = len(row) // shape[axis]
        if not np.array_equal(row, np.repeat(np.arange(shape[axis]), factors[axis])):
            return None
    return tuple(factors)


def _repeated(node: ir.Node, factors: tuple[int, ...]) -> ir.Value:
    """A Resize by whole factors in the form that rounds nothing: index = floor(position / factor)."""
    output = node.outputs[0]
    scales = _constant(node, np.array(factors, np.float32), "scales")
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return edit.insert(
        node,
        "Resize",
        [node.inputs[0], None, scales],
        attributes=attributes,
        source=output,
        replaces=[node],
        shape=shape_of(output),
    )


def _gathered(node: ir.Node, positions: Positions) -> ir.Value:
    value = node.inputs[0]
    if value is None:
        raise TypeError(f"node {node.name!r} has no input")
    nearest = attribute(node, "mode", "nearest") == "nearest"
    for axis, row in positions.items():
        lower = np.floor(row).astype(np.int64)
        weight = row - lower
        if nearest or not weight.any():
            value = _gather(node, value, axis, lower)
            continue
        upper = np.minimum(lower + 1, (shape_of(value) or ())[axis] - 1)
        value = _interpolated(node, _gather(node, value, axis, lower), _gather(node, value, axis, upper), axis, weight)
    return value


def _gather(node: ir.Node, value: ir.Value, axis: int, indices: Array) -> ir.Value:
    return insert_gather(node, value, axis, _constant(node, indices, "indices"), len(indices))


def _interpolated(node: ir.Node, lower: ir.Value, upper: ir.Value, axis: int, weight: Array) -> ir.Value:
    output, shape = node.outputs[0], shape_of(lower) or ()

    def insert(op_type: str, first: ir.Value, second: ir.Value) -> ir.Value:
        return edit.insert(node, op_type, [first, second], source=output, replaces=[node], shape=shape)

    along = weight.astype(np.float32).reshape([-1 if other == axis else 1 for other in range(len(shape))])
    step = insert("Mul", insert("Sub", upper, lower), _constant(node, along, "weights"))
    return insert("Add", lower, step)


def _constant(node: ir.Node, array: Array, name: str) -> ir.Value:
    output = node.outputs[0]
    return edit.add_initializer(edit.graph_of(node), array, name=f"{output.name}/{name}", source=output)
