"""Rewrite Einsum of two operands as MatMul, with the Transposes and Reshapes that bring its axes in order.

Compilers accept a few equations and reject or change the rest (HTP rejects ``bqhd,bkhd->bhqk`` and runs
``bhwc,hkc->bhwk`` in float); and attention that is written with Einsum is only found once it is MatMul.
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


def einsum_to_matmul(model: ir.Model) -> PassRecord:
    """Replace every Einsum of two operands without a diagonal; where no axis is summed it becomes Mul."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not edit.is_op(node, "Einsum"):
            continue
        where, text = origin_of(node.outputs[0]).name, str(edit.attribute(node, "equation", ""))
        shapes = [shape for value in node.inputs if (shape := shape_of(value)) is not None]
        if len(shapes) < len(node.inputs):
            declined.append(Site(where, "the shape of an operand is unknown"))
            continue
        try:
            equation = parse(text, shapes)
        except NotMatMulError as reason:
            declined.append(Site(where, str(reason)))
            continue
        _rewrite(node, equation)
        changed.append(Site(where, f"Einsum {text} rewritten as MatMul or Mul"))
    return PassRecord("einsum_to_matmul", tuple(changed), tuple(declined))


def _rewrite(node: ir.Node, equation: Equation) -> None:
    first, first_axes = _reduced(node, node.inputs[0], equation.first, equation.reduced_axes(equation.first))
    second, second_axes = _reduced(node, node.inputs[1], equation.second, equation.reduced_axes(equation.second))
    equation = Equation(first_axes, second_axes, equation.result)
    if _is_better_swapped(first, second, equation):
        first, second, equation = second, first, equation.swapped()
    sizes = dict(zip(equation.first, shape_of(first) or (), strict=True))
    sizes |= dict(zip(equation.second, shape_of(second) or (), strict=True))
    matmul, output = matmul_axes(equation), node.outputs[0]
    lead = tuple(sizes[axis] for axis in matmul.batch)
    height, width, depth = (
        math.prod(sizes[axis] for axis in axes) for axes in (matmul.rows, matmul.columns, matmul.contracted)
    )
    shared = "".join(axis for axis in matmul.batch if axis in equation.second)
    second_batch = matmul.batch[matmul.batch.index(shared[0]) :] if shared else ""
    second_lead = tuple(sizes[axis] if axis in shared else 1 for axis in second_batch)
    left = _transposed(node, first, equation.first, matmul.batch + matmul.rows + matmul.contracted)
    right = _transposed(node, second, equation.second, shared + matmul.contracted + matmul.columns)
    operands = [_reshaped(node, left, (*lead, height, depth)), _reshaped(node, right, (*second_lead, depth, width))]
    shape, op_type = (*lead, height, width), "MatMul" if matmul.contracted else "Mul"
    new = edit.insert(node, op_type, operands, source=output, replaces=[node], shape=shape)
    axes = matmul.batch + matmul.rows + matmul.columns
    new = _reshaped(node, new, tuple(sizes[axis] for axis in axes))
    edit.replace_value(output, _transposed(node, new, axes, equation.result))
    edit.remove_dead(edit.graph_of(node), [node])


def _is_better_swapped(first: ir.Value, second: ir.Value, equation: Equation) -> bool:
    """Whether to swap the operands: a constant goes second, else the one with the last axis of the result."""
    constants = [constant_of(value) is not None for value in (first, second)]
    if any(constants):
        return constants == [True, False]
    return bool(equation.result) and equation.result[-1] not in equation.second


def _reduced(node: ir.Node, value: ir.Value | None, axes: str, reduced: str) -> tuple[ir.Value, str]:
    """The operand summed over the axes that only it has, and its remaining axes."""
    shape = shape_of(value)
    if value is None or shape is None:
        raise TypeError(f"an operand of node {node.name!r} is missing")
    if not reduced:
        return value, axes
    indices = np.array([axes.index(axis) for axis in reduced], dtype=np.int64)
    constant = edit.add_initializer(edit.graph_of(node), indices, name=f"{value.name}/axes", source=value)
    kept = "".join(axis for axis in axes if axis not in reduced)
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


def _transposed(node: ir.Node, value: ir.Value, axes: str, order: str) -> ir.Value:
    if axes == order:
        return value
    return insert_step(node, value, Step("Transpose", tuple(axes.index(axis) for axis in order)), replaces=[node])


def _reshaped(node: ir.Node, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    return value if shape_of(value) == shape else insert_step(node, value, Step("Reshape", shape), replaces=[node])
