"""Fold a constant factor after a linear layer into its weight and bias: layer scale, and the scale of attention.

A Mul over a whole activation costs time and one more rounding; in a weight with per-channel scales it costs nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.layout import perm_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


@dataclass(frozen=True, slots=True, eq=False)
class _FoldTarget:
    """A linear layer, the nodes between it and the Mul, and the factor: per output of the layer, or one scalar."""

    linear: ir.Node
    between: tuple[ir.Node, ...]
    factor: Array


def fold_scale(model: ir.Model) -> PassRecord:
    """Fold every Mul by a constant whose data comes from a linear layer, through reshapes, transposes and a Split.

    The constant is a scalar, or has one value per output of the layer. The tensors in between must have no other
    consumers.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Mul") or constant_of(node.inputs[1]) is None:
            continue
        where = origin_of(node.outputs[0]).name
        target = _find_linear(node)
        if isinstance(target, str):
            declined.append(Site(where, target))
            continue
        _fold(model.graph, node, target)
        changed.append(Site(where, f"folded into the {target.linear.op_type} before it"))
    return PassRecord("fold_scale", tuple(changed), tuple(declined))


def _find_linear(node: ir.Node) -> _FoldTarget | str:
    """The linear layer that a factor can be folded into, or why there is none."""
    factor = _per_output(node)
    if factor is None:
        return "the factor is neither a scalar nor one value per output"
    between: list[ir.Node] = []
    for value, producer in _upstream(node):
        if _is_linear(producer):
            return _FoldTarget(producer, tuple(reversed(between)), factor)
        if is_op(producer, "Split"):
            factor = _before_split(producer, value, factor)
        elif not is_op(producer, "Reshape", "Transpose") or (factor.size > 1 and not _keeps_last_axis(producer)):
            break
        if factor is None:
            break
        between.append(producer)
    return "it does not follow a linear layer, or a tensor in between has other consumers"


def _upstream(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Node]]:
    """The values upstream of a node's first input that have one consumer each, with their producers."""
    value = node.inputs[0]
    while value is not None and edit.sole_consumer(value) is node and (producer := value.producer()) is not None:
        yield value, producer
        node, value = producer, producer.inputs[0]


def _per_output(node: ir.Node) -> Array | None:
    array, shape = constant_of(node.inputs[1]), shape_of(node.outputs[0])
    if array is None or shape is None or shape != shape_of(node.inputs[0]):
        return None
    if array.size == 1 or (array.shape[-1] == array.size == shape[-1]):
        return array.reshape(-1).astype(np.float64)
    return None


def _is_linear(node: ir.Node) -> bool:
    if is_op(node, "MatMul"):
        return constant_of(node.inputs[1]) is not None and not edit.why_weight_not_matrix(node)
    if not is_op(node, "Gemm") or attribute(node, "alpha", 1.0) != 1 or attribute(node, "beta", 1.0) != 1:
        return False
    return all(constant_of(value) is not None for value in node.inputs[1:] if value is not None)


def _keeps_last_axis(node: ir.Node) -> bool:
    """Whether a Reshape or Transpose keeps the last axis."""
    before, after = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if node.op_type == "Transpose":
        return before is not None and perm_of(node)[-1] == len(before) - 1
    return bool(before and after) and (before or ())[-1] == (after or ())[-1]


def _before_split(split: ir.Node, output: ir.Value, factor: Array) -> Array | None:
    """The factor of one output of a Split as a factor of its input; None if the Split is not along the last axis."""
    input_shape, shapes = shape_of(split.inputs[0]), [shape_of(value) for value in split.outputs]
    if input_shape is None or attribute(split, "axis", 0) not in (-1, len(input_shape) - 1):
        return None
    factors = [np.ones(shape[-1]) for shape in shapes if shape is not None]
    if len(factors) != len(shapes):
        return None
    factors[split.outputs.index(output)] *= factor
    return np.concatenate(factors)


def _fold(graph: ir.Graph, node: ir.Node, target: _FoldTarget) -> None:
    value = _scaled_linear(graph, target.linear, target.factor)
    for current, following in itertools.pairwise((*target.between, node)):
        if is_op(current, "Split"):
            sizes = [(shape_of(output) or ())[-1] for output in current.outputs]
            outputs = edit.insert_split(current, value, sizes, replaces=[current])
            scaled = next(i for i, output in enumerate(current.outputs) if output is following.inputs[0])
            for index, (old, new) in enumerate(zip(current.outputs, outputs, strict=True)):
                if index != scaled:
                    edit.replace_value(old, new)
            value = outputs[scaled]
        else:
            value = edit.insert_copy(current, current, [value, *current.inputs[1:]])
    edit.replace_value(node.outputs[0], value)
    edit.remove_dead(graph, [node])


def _scaled_linear(graph: ir.Graph, linear: ir.Node, factor: Array) -> ir.Value:
    """A copy of a linear layer whose outputs are multiplied by the factor."""
    inputs: list[ir.Value | None] = list(linear.inputs[:1])
    for index, value in enumerate(linear.inputs[1:], 1):
        array = constant_of(value)
        if value is None or array is None:
            inputs.append(value)
            continue
        rows = index == 1 and attribute(linear, "transB", 0)
        scaled = array.astype(np.float64) * (factor.reshape(-1, 1) if rows else factor)
        name = f"{value.name}/scaled"
        inputs.append(edit.add_initializer(graph, scaled.astype(array.dtype), name=name, source=value))
    return edit.insert_copy(linear, linear, inputs)
