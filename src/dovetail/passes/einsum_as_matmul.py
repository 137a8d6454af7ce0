"""Einsum of two operands as MatMul, with the Transposes and Reshapes that bring its axes in order.

Compilers take a few equations and refuse or change the rest (HTP refuses ``bqhd,bkhd->bhqk`` and runs
``bhwc,hkc->bhwk`` in float); and attention that is written with Einsum is found only when it is MatMul.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import constant_of, shape_of
from dovetail.model.equation import Equation, NotMatMulError, matmul_axes, parse
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def einsum_as_matmul(model: ir.Model) -> PassRecord:
    """Replace every Einsum of two operands that takes no diagonal; where no axis is summed it becomes Mul."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not edit.is_op(node, "Einsum"):
            continue
        where, text = origin_of(node.outputs[0]).name, str(edit.attribute(node, "equation", ""))
        shapes = [shape for value in node.inputs if (shape := shape_of(value)) is not None]
        if len(shapes) < len(node.inputs):
            declined.append(Site(where, "the shape of an operand is not known"))
            continue
        try:
            equation = parse(text, shapes)
        except NotMatMulError as reason:
            declined.append(Site(where, str(reason)))
            continue
        _rewrite(node, equation)
        changed.append(Site(where, f"Einsum {text} written out"))
    return PassRecord("einsum_as_matmul", tuple(changed), tuple(declined))


def _rewrite(node: ir.Node, equation: Equation) -> None:
    first, first_axes = _summed(node, node.inputs[0], equation.first, equation.reduced_axes(equation.first))
    second, second_axes = _summed(node, node.inputs[1], equation.second, equation.reduced_axes(equation.second))
    equation = Equation(first_axes, second_axes, equation.result)
    if _is_better_swapped(first, second, equation):
        first, second, equation = second, first, equation.swapped()
    sizes = dict(zip(equation.first, shape_of(first) or (), strict=True))
    sizes |= dict(zip(equation.second, shape_of(second) or (), strict=True))
    parts, output = matmul_axes(equation), node.outputs[0]
    lead = tuple(sizes[axis] for axis in parts.stacked)
    height, width, depth = (
        math.prod(sizes[axis] for axis in part) for part in (parts.rows, parts.columns, parts.inner)
    )
    shared = "".join(axis for axis in parts.stacked if axis in equation.second)
    repeated = parts.stacked[parts.stacked.index(shared[0]) :] if shared else ""
    beside = tuple(sizes[axis] if axis in shared else 1 for axis in repeated)
    left = _turned(node, first, equation.first, parts.stacked + parts.rows + parts.inner)
    right = _turned(node, second, equation.second, shared + parts.inner + parts.columns)
    operands = [_reshaped(node, left, (*lead, height, depth)), _reshaped(node, right, (*beside, depth, width))]
    shape, op_type = (*lead, height, width), "MatMul" if parts.inner else "Mul"
    new = edit.insert(node, op_type, operands, source=output, replaces=[node], shape=shape)
    axes = parts.stacked + parts.rows + parts.columns
    new = _reshaped(node, new, tuple(sizes[axis] for axis in axes))
    edit.replace_value(output, _turned(node, new, axes, equation.result))
    edit.remove_dead(edit.graph_of(node), [node])


def _is_better_swapped(first: ir.Value, second: ir.Value, equation: Equation) -> bool:
    """A constant is the second operand, as weights are; of two activations the one with the last axis of the result."""
    constants = [constant_of(value) is not None for value in (first, second)]
    if any(constants):
        return constants == [True, False]
    return bool(equation.result) and equation.result[-1] not in equation.second


def _summed(node: ir.Node, value: ir.Value | None, axes: str, alone: str) -> tuple[ir.Value, str]:
    """The operand without the axes that are summed in it alone, and the axes that are left."""
    shape = shape_of(value)
    if value is None or shape is None:
        raise TypeError(f"{node.name!r} lacks an operand")
    if not alone:
        return value, axes
    indices = np.array([axes.index(axis) for axis in alone], dtype=np.int64)
    constant = edit.add_initializer(edit.graph_of(node), indices, name=f"{value.name}/axes", source=value)
    kept = "".join(axis for axis in axes if axis not in alone)
    result = edit.insert(
        node,
        "ReduceSum",
        [value, constant],
        attributes={"keepdims": 0},
        source=value,
        replaces=[node],
        shape=[size for axis, size in zip(axes, shape, strict=True) if axis in kept],
    )
    return result, kept


def _turned(node: ir.Node, value: ir.Value, axes: str, wanted: str) -> ir.Value:
    if axes == wanted:
        return value
    return insert_step(node, value, Step("Transpose", tuple(axes.index(axis) for axis in wanted)), replaces=[node])


def _reshaped(node: ir.Node, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    return value if shape_of(value) == shape else insert_step(node, value, Step("Reshape", shape), replaces=[node])
