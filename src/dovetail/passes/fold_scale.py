"""Fold a constant factor behind a linear layer into its weight and bias: layer scale, and the scale of the attention.

A Mul over a whole activation costs time and one more rounding; in a weight with one scale per channel it costs nothing.
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
class _Found:
    """A linear layer, the nodes from it to the factor, and the factor over the layer's outputs (or one number)."""

    linear: ir.Node
    between: tuple[ir.Node, ...]
    factor: Array


def fold_scale(model: ir.Model) -> PassRecord:
    """Fold every Mul by a constant whose data comes from a linear layer, through reshapes, transposes and a Split.

    The constant is one number, or has one number per output of the layer. What lies between must be read by nothing
    else.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Mul") or constant_of(node.inputs[1]) is None:
            continue
        where = origin_of(node.outputs[0]).name
        found = _look_back(node)
        if isinstance(found, str):
            declined.append(Site(where, found))
            continue
        _fold(model.graph, node, found)
        changed.append(Site(where, f"folded into the {found.linear.op_type} before it"))
    return PassRecord("fold_scale", tuple(changed), tuple(declined))


def _look_back(node: ir.Node) -> _Found | str:
    """The linear layer that a factor can go into, or why there is none."""
    factor = _per_output(node)
    if factor is None:
        return "the factor is neither one number nor one per output"
    between: list[ir.Node] = []
    for value, producer in _behind(node):
        if _is_linear(producer):
            return _Found(producer, tuple(reversed(between)), factor)
        if is_op(producer, "Split"):
            factor = _before_split(producer, value, factor)
        elif not is_op(producer, "Reshape", "Transpose") or (factor.size > 1 and not _keeps_last(producer)):
            break
        if factor is None:
            break
        between.append(producer)
    return "its data does not come from a linear layer for it alone"


def _behind(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Node]]:
    """Values that are read by what was behind them alone, and their producers, from a node's data backwards."""
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
        return constant_of(node.inputs[1]) is not None and not edit.weight_is_matrix(node)
    if not is_op(node, "Gemm") or attribute(node, "alpha", 1.0) != 1 or attribute(node, "beta", 1.0) != 1:
        return False
    return all(constant_of(value) is not None for value in node.inputs[1:] if value is not None)


def _keeps_last(node: ir.Node) -> bool:
    """Whether the last axis stays what it is."""
    before, after = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if node.op_type == "Transpose":
        return before is not None and perm_of(node)[-1] == len(before) - 1
    return bool(before and after) and (before or ())[-1] == (after or ())[-1]


def _before_split(split: ir.Node, part: ir.Value, factor: Array) -> Array | None:
    """The factor of one part of a Split as a factor of the whole; None where the split is not of the last axis."""
    whole, shapes = shape_of(split.inputs[0]), [shape_of(value) for value in split.outputs]
    if whole is None or attribute(split, "axis", 0) not in (-1, len(whole) - 1):
        return None
    ones = [np.ones(shape[-1]) for shape in shapes if shape is not None]
    if len(ones) != len(shapes):
        return None
    ones[split.outputs.index(part)] *= factor
    return np.concatenate(ones)


def _fold(graph: ir.Graph, node: ir.Node, found: _Found) -> None:
    value = _scaled_linear(graph, found.linear, found.factor)
    for one, following in itertools.pairwise((*found.between, node)):
        if is_op(one, "Split"):
            sizes = [(shape_of(part) or ())[-1] for part in one.outputs]
            parts = edit.insert_split(one, value, sizes, replaces=[one])
            index = next(i for i, part in enumerate(one.outputs) if part is following.inputs[0])
            for number, (old, new) in enumerate(zip(one.outputs, parts, strict=True)):
                if number != index:
                    edit.replace_value(old, new)
            value = parts[index]
        else:
            value = edit.insert_copy(one, one, [value, *one.inputs[1:]])
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
