"""Rewrite GatherND and ScatterND, which HTP runs in float, as Gather, which passes its input's quantization through.

Assigning to a slice is exported as ScatterND with constant indices: every row of the result is a row of the data or of
the updates, so it is one Gather from their Concat.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

Shape = tuple[int, ...]


def gather_nd_to_gather(model: ir.Model) -> PassRecord:
    """Replace every ScatterND with constant indices, and every GatherND that can index a single axis."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "GatherND", "ScatterND"):
            continue
        output = node.outputs[0]
        where = origin_of(output).name
        reason = _obstacle(node)
        if reason:
            declined.append(Site(where, reason))
            continue
        edit.replace_value(output, _scatter(node) if node.op_type == "ScatterND" else _gather(node))
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, f"{node.op_type} rewritten as Gather"))
    return PassRecord("gather_nd_to_gather", tuple(changed), tuple(declined))


def _obstacle(node: ir.Node) -> str:
    shapes = [shape_of(value) for value in (*node.inputs, *node.outputs)]
    if any(shape is None or 0 in shape for shape in shapes):
        return "its shapes are unknown or empty"
    if attribute(node, "reduction", "none") != "none":
        return "it has a reduction"
    if attribute(node, "batch_dims", 0):
        return "it has batch dimensions (batch_dims)"
    if constant_of(node.inputs[1]) is None and (node.op_type == "ScatterND" or _depth(node) > 1):
        return "its indices depend on the inputs"
    return ""


def _depth(node: ir.Node) -> int:
    """How many leading axes one index covers."""
    return _shape(node.inputs[1])[-1]


def _shape(value: ir.Value | None) -> Shape:
    return shape_of(value) or ()


def _rows(node: ir.Node) -> Array | None:
    """Constant indices as row numbers over the merged leading axes; negative indices count from the end."""
    indices = constant_of(node.inputs[1])
    if indices is None:
        return None
    leading = _shape(node.inputs[0])[: _depth(node)]
    rows: Array = np.ravel_multi_index(tuple(np.moveaxis(indices % np.array(leading), -1, 0)), leading)
    return rows


def _gather(node: ir.Node) -> ir.Value:
    data, indices = node.inputs[:2]
    output, rows = node.outputs[0], _rows(node)
    if data is None or indices is None:
        raise TypeError(f"node {node.name!r} has no inputs")
    if rows is None:
        row_indices = insert_step(node, indices, Step("Reshape", _shape(indices)[:-1]), replaces=[])
    else:
        name = f"{indices.name}/rows"
        row_indices = edit.add_initializer(edit.graph_of(node), rows.astype(np.int64), name=name, source=indices)
    leading, rest = _shape(data)[: _depth(node)], _shape(data)[_depth(node) :]
    flat = _reshaped(node, data, (math.prod(leading), *rest))
    shape = _shape(output)
    attributes = {"axis": 0}
    return edit.insert(
        node, "Gather", [flat, row_indices], attributes=attributes, source=output, replaces=[node], shape=shape
    )


def _scatter(node: ir.Node) -> ir.Value:
    data, indices, updates = node.inputs
    output, rows = node.outputs[0], _rows(node)
    if data is None or indices is None or updates is None or rows is None:
        raise TypeError(f"node {node.name!r} has no constant indices")
    shape, depth = _shape(data), _depth(node)
    count, width = math.prod(shape[:depth]), math.prod(shape[depth:])
    order = np.arange(count)
    order[rows.reshape(-1)] = count + np.arange(rows.size)
    name = f"{indices.name}/order"
    row_indices = edit.add_initializer(edit.graph_of(node), order.astype(np.int64), name=name, source=indices)
    operands = [_reshaped(node, data, (count, width)), _reshaped(node, updates, (rows.size, width))]
    both = edit.insert(
        node, "Concat", operands, attributes={"axis": 0}, source=output, replaces=[], shape=(count + rows.size, width)
    )
    chosen = edit.insert(
        node,
        "Gather",
        [both, row_indices],
        attributes={"axis": 0},
        source=output,
        replaces=[node],
        shape=(count, width),
    )
    return _reshaped(node, chosen, shape)


def _reshaped(before: ir.Node, value: ir.Value, shape: Shape) -> ir.Value:
    array = constant_of(value)
    if _shape(value) == shape:
        return value
    if array is not None:
        name = f"{value.name}/rows"
        return edit.add_initializer(edit.graph_of(before), array.reshape(shape), name=name, source=value)
    return insert_step(before, value, Step("Reshape", shape), replaces=[])
