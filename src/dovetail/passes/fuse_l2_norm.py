"""Rewrite x / max(norm(x), epsilon) as LpNormalization, which HTP runs as one operator (L2Norm).

Cosine attention (SwinV2) and embedding heads contain it. In parts, only the norm itself (ReduceL2) needs float.
"""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, scalar_of, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

# LpNormalization has no epsilon: a vector of zeros stays zero, and one that is shorter than epsilon becomes a unit
# vector. A quantized vector is not as short as this, unless it is zero.
_LARGEST_EPSILON = 1e-6


def fuse_l2_norm(model: ir.Model) -> PassRecord:
    """Replace every division of a tensor by its own norm along one axis."""
    changed: list[Site] = []
    for node in list(model.graph):
        axis = norm_axis(node)
        if axis is None:
            continue
        data = node.inputs[0]
        changed.append(Site(origin_of(node.outputs[0]).name, f"division by its norm along axis {axis}"))
        output, attributes = node.outputs[0], {"axis": axis, "p": 2}
        new = edit.insert(
            node, "LpNormalization", [data], attributes=attributes, source=output, replaces=[node], shape=shape_of(data)
        )
        edit.replace_value(output, new)
        edit.remove_dead(model.graph, [node])
    return PassRecord("fuse_l2_norm", tuple(changed))


def norm_axis(node: ir.Node) -> int | None:
    """The axis along which a Div divides a tensor by its norm, at least a small epsilon; None if it does not."""
    data, divisor = node.inputs[:2] if is_op(node, "Div") else (None, None)
    if data is None:
        return None
    reduced = _unbounded(_unexpanded(divisor))
    norm = None if reduced is None else reduced.producer()
    rank = None if (shape := shape_of(data)) is None else len(shape)
    if norm is None or rank is None or shape_of(divisor) not in (shape, shape_of(reduced)):
        return None
    if is_op(norm, "ReduceL2"):
        return _one_axis(norm, rank) if norm.inputs[0] is data else None
    total = norm.inputs[0].producer() if is_op(norm, "Sqrt") and norm.inputs[0] is not None else None
    if total is None or not is_op(total, "ReduceSum") or not _is_square(total.inputs[0], data):
        return None
    return _one_axis(total, rank)


def _unexpanded(value: ir.Value | None) -> ir.Value | None:
    producer = None if value is None else value.producer()
    return producer.inputs[0] if producer is not None and is_op(producer, "Expand") else value


def _unbounded(value: ir.Value | None) -> ir.Value | None:
    """The value after a lower bound of at most ``_LARGEST_EPSILON``, written as Clip, Max or Add."""
    node = None if value is None else value.producer()
    if node is None or not is_op(node, "Clip", "Max", "Add"):
        return value
    inputs = [operand for operand in node.inputs if operand is not None]
    constants = [scalar_of(operand) for operand in inputs[1:]]
    if len(constants) != 1 or constants[0] is None or not 0 <= constants[0] <= _LARGEST_EPSILON:
        return None
    if is_op(node, "Clip") and len(node.inputs) > 2 and node.inputs[1] is None:  # an upper bound
        return None
    return inputs[0]


def _is_square(value: ir.Value | None, data: ir.Value) -> bool:
    node = None if value is None else value.producer()
    if node is None or not is_op(node, "Mul", "Pow") or node.inputs[0] is not data:
        return False
    return node.inputs[1] is data if is_op(node, "Mul") else scalar_of(node.inputs[1]) == 2


def _one_axis(node: ir.Node, rank: int) -> int | None:
    """The only axis of a reduction that keeps its rank."""
    axes = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if axes is None or axes.size != 1 or not attribute(node, "keepdims", 1):
        return None
    return int(axes.item()) % rank
