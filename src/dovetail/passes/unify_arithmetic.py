"""Write Add, Sub, Mul and Div with a constant in one way."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import constant_of, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def unify_arithmetic(model: ir.Model) -> PassRecord:
    """Make the constant the second operand, Sub an Add, Div by powers of two a Mul, and lower the rank of constants.

    All of it is exact: a negated constant and the reciprocal of a power of two are. Other divisions stay, because
    multiplying by a rounded reciprocal gives different results. A constant of shape [1,1,N] becomes [N] and one of a
    single element a scalar, where this does not change the shape of the result.
    """
    changed: list[Site] = []
    for node in model.graph:
        if not edit.is_op(node, "Add", "Mul", "Sub", "Div"):
            continue
        changes = [change for step in (_constant_second, _invert, _lower_rank) if (change := step(node))]
        if changes:
            changed.append(Site(origin_of(node.outputs[0]).name, ", ".join(changes)))
    return PassRecord("unify_arithmetic", tuple(changed))


def _constant_second(node: ir.Node) -> str:
    left, right = node.inputs
    if node.op_type in ("Sub", "Div") or constant_of(left) is None or constant_of(right) is not None:
        return ""
    node.replace_input_with(0, right)
    node.replace_input_with(1, left)
    return "constant made the second operand"


def _invert(node: ir.Node) -> str:
    """Rewrite Sub of a constant as Add of its negative, and Div by a power of two as Mul by its reciprocal."""
    array = constant_of(node.inputs[1])
    if array is None or array.dtype.kind != "f" or node.op_type not in ("Sub", "Div"):
        return ""
    if node.op_type == "Sub":
        _set_constant(node, -array, "negated")
        node.op_type = "Add"
        return "Sub rewritten as Add"
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.asarray(1 / array, dtype=array.dtype)
    exact = np.isfinite(inverse) & (np.abs(np.frexp(array)[0]) == 0.5) & (np.abs(inverse) >= np.finfo(array.dtype).tiny)
    if not exact.all():
        return ""
    _set_constant(node, inverse, "inverse")
    node.op_type = "Mul"
    return "Div rewritten as Mul"


def _lower_rank(node: ir.Node) -> str:
    value, data_shape = node.inputs[1], shape_of(node.inputs[0])
    array = constant_of(value)
    if array is None or data_shape is None or array.ndim == 0 or array.ndim > len(data_shape):
        return ""
    lower = array.reshape(()) if array.size == 1 else array.reshape(-1)
    if lower.ndim == array.ndim or array.shape[-1] != array.size:
        return ""
    _set_constant(node, lower, "flat")
    return f"constant of shape {list(array.shape)} flattened"


def _set_constant(node: ir.Node, array: Array, suffix: str) -> None:
    old, graph = node.inputs[1], node.graph
    if old is None or not isinstance(graph, ir.Graph):
        raise TypeError(f"node {node.name!r} has no constant operand")
    node.replace_input_with(1, edit.add_initializer(graph, array, name=f"{old.name}/{suffix}", source=old))
