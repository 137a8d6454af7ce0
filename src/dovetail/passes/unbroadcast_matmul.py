"""Rewrite MatMul whose second operand is broadcast along leading axes as MatMul without broadcasting.

The HTP compiler (onnxruntime-qnn 2.7.0) loses a Reshape before such a MatMul and silently computes wrong values:
``Reshape [b,hw,c] -> [b,h,w,c]``, then MatMul by [h,c,k], has an SQNR of -9 dB against its simulation. As [h,bw,c] by
[h,c,k] it has 80 dB. Without a Reshape in front, the broadcast is computed correctly, and faster.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import constant_of, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import nodes_of
from dovetail.pass_record import PassRecord, Site

Shape = tuple[int, ...]


def unbroadcast_matmul(model: ir.Model) -> PassRecord:
    """Merge the axes along which the second operand is broadcast into the rows of the first, if that is a Reshape."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not edit.is_op(node, "MatMul") or not _is_reshaped(node.inputs[0]) or _is_linear(node):
            continue
        shape, second_shape = shape_of(node.inputs[0]), shape_of(node.inputs[1])
        if shape is None or second_shape is None or min(len(shape), len(second_shape)) < 2:
            continue
        where = ", ".join(nodes_of(node)) or node.name or ""
        padded = (1,) * (len(shape) - len(second_shape)) + second_shape
        broadcast = [axis for axis in range(len(shape) - 2) if padded[axis] == 1 < shape[axis]]
        if not broadcast:
            continue
        if len(second_shape) > len(shape) or any(a == 1 < b for a, b in zip(shape[:-2], padded[:-2], strict=True)):
            declined.append(Site(where, "the first operand is broadcast too"))
            continue
        _rewrite(node, shape, padded, broadcast)
        changed.append(Site(where, "axes along which the second operand is broadcast merged into the rows"))
    return PassRecord("unbroadcast_matmul", tuple(changed), tuple(declined))


def _is_reshaped(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    return producer is not None and edit.is_op(producer, "Reshape")


def _is_linear(node: ir.Node) -> bool:
    """Whether the second operand is one constant matrix, which the compiler handles separately and correctly."""
    return constant_of(node.inputs[1]) is not None and len(shape_of(node.inputs[1]) or ()) == 2


def _rewrite(node: ir.Node, shape: Shape, padded: Shape, broadcast: list[int]) -> None:
    first, second, output = node.inputs[0], node.inputs[1], node.outputs[0]
    if first is None or second is None:
        raise TypeError(f"an operand of node {node.name!r} is missing")
    last = len(shape) - 1
    kept = [axis for axis in range(last - 1) if axis not in broadcast]
    order = (*kept, *broadcast, last - 1, last)
    batch = tuple(shape[axis] for axis in kept)
    rows = math.prod(shape[axis] for axis in (*broadcast, last - 1))
    left = _step(node, _step(node, first, Step("Transpose", order)), Step("Reshape", (*batch, rows, shape[-1])))
    right = _second(node, second, (*batch, *padded[-2:]))
    merged = (*batch, rows, padded[-1])
    new = edit.insert(node, "MatMul", [left, right], source=output, replaces=[node], shape=merged)
    new = _step(node, new, Step("Reshape", (*(shape[axis] for axis in order[:-1]), padded[-1])))
    back = Step("Transpose", tuple(order.index(axis) for axis in range(last + 1)))
    edit.replace_value(output, _step(node, new, back))
    edit.remove_dead(edit.graph_of(node), [node])


def _second(node: ir.Node, value: ir.Value, shape: Shape) -> ir.Value:
    array = constant_of(value)
    if array is None or array.shape == shape:
        return _step(node, value, Step("Reshape", shape))
    return edit.add_initializer(edit.graph_of(node), array.reshape(shape), name=f"{value.name}/stack", source=value)


def _step(node: ir.Node, value: ir.Value, step: Step) -> ir.Value:
    """The value after a step; the value itself if the step changes nothing."""
    same = shape_of(value) if step.op_type == "Reshape" else tuple(range(len(step.shape_or_perm)))
    return value if step.shape_or_perm == same else insert_step(node, value, step, replaces=[node])
