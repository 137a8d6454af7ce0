"""Sentinels: constants of a magnitude that no data has, and what the operators after them can distinguish.

Detectors mark anchors outside the image with 1e34 or the largest float, attention masks scores with -1e9 or -inf. Such
a value would set the quantization range of the whole tensor. It can be reduced where only three kinds of operators read
it: a Sigmoid saturates, a TopK whose values are not used only orders, a Softmax gives zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import attribute, constant_of, is_op, scalar_of, shape_of
from dovetail.model.origin import origin_of
from dovetail.model.place import named

# Added to it in float32, every value below 32 is rounded away: such a constant is a sentinel, not data.
SENTINEL = 1e9
# sigmoid(16) is 1 - 1e-7, and box refinement adds only a few units to a sentinel.
SATURATED = 16.0
_PASSED_ON = (*DATA_MOVEMENT_OPS, "ReduceMax", "ReduceMin")
# The operators that add or select a sentinel.
READERS = ("Add", "Where", "Concat")


class Effect(StrEnum):
    """What a sentinel does in the operators that it reaches."""

    SATURATES = "saturates"
    ORDERS = "orders"
    MASKS = "masks"


@dataclass(frozen=True, slots=True, eq=False)
class SentinelEdge:
    """A constant with sentinels as one node reads it."""

    node: ir.Node
    index: int
    value: ir.Value
    array: Array

    @property
    def hits(self) -> Array:
        """Which elements are sentinels; compared in float64, because float16 cannot hold the limit."""
        return is_sentinel(self.array)

    @property
    def data(self) -> ir.Value | None:
        """The tensor that is masked: the other operand of an Add, or the other branch of a Where."""
        if is_op(self.node, "Add"):
            return self.node.inputs[1 - self.index]
        return self.node.inputs[3 - self.index] if is_op(self.node, "Where") else None


@dataclass(slots=True)
class Reach:
    """The operators that a value reaches, through data movement, maxima and sums.

    ``readers``: the others, with the index of the input. ``summands``: what is added on the way. ``output``: the graph
    output that it reaches, if any. ``merged``: whether a Concat or Where merges it with other values.
    """

    readers: list[tuple[ir.Node, int]] = field(default_factory=list)
    summands: list[ir.Value] = field(default_factory=list)
    output: ir.Value | None = None
    merged: bool = False


def is_sentinel(array: Array) -> Array:
    """Which elements of an array have a magnitude that no data has."""
    sentinels: Array = np.abs(array.astype(np.float64)) >= SENTINEL
    return sentinels


def sentinel_edges(graph: ir.Graph) -> Iterator[SentinelEdge]:
    """Every float constant with sentinels that an Add, a Where or a Concat reads, in graph order."""
    for node in graph:
        for index, value in enumerate(node.inputs if is_op(node, *READERS) else ()):
            array = constant_of(value)
            if value is not None and array is not None and array.dtype.kind == "f" and is_sentinel(array).any():
                yield SentinelEdge(node, index, value, array)


def reach_of(value: ir.Value) -> Reach:
    """What a value reaches."""
    reach = Reach()
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        if current.is_graph_output():
            reach.output = current
        for consumer, index in current.uses():
            if index == 0 and is_op(consumer, *_PASSED_ON):
                results = [output for output in consumer.outputs if output.name]
            elif is_op(consumer, "Add", "Concat") or (index > 0 and is_op(consumer, "Where")):
                results = [consumer.outputs[0]]
                reach.merged = reach.merged or consumer.op_type != "Add"
                other = consumer.inputs[1 - index] if consumer.op_type == "Add" else None
                if other is not None and other not in reach.summands:
                    reach.summands.append(other)
            else:
                reach.readers.append((consumer, index))
                continue
            pending += [result for result in results if result not in seen]
            seen.update(results)
    return reach


def effect_of(edge: SentinelEdge) -> Effect | str:
    """What the sentinels of an edge do, or why it depends on their magnitude."""
    reach = reach_of(edge.node.outputs[0])
    if reach.output is not None:
        return f"its values reach a graph output, {origin_of(reach.output).name!r}"
    kinds = [effect_at(node, index) for node, index in reach.readers]
    for (node, _), kind in zip(reach.readers, kinds, strict=True):
        if kind is None:
            return f"the result of {named(node)} depends on its magnitude"
    if len(set(kinds)) != 1 or kinds[0] is None:
        names = ", ".join(sorted({named(node) for node, _ in reach.readers}))
        return f"it has different effects on {names}" if kinds else "nothing reads it"
    effect = kinds[0]
    if effect is not Effect.SATURATES and (reason := _why_not_masked(edge, effect, reach)):
        return reason
    return effect


def clip_bound(edge: SentinelEdge) -> float:
    """The largest magnitude that a Clip which reads the sentinels, perhaps in a sum, lets through; 0 without a Clip."""
    clips = [node for node, _ in reach_of(edge.node.outputs[0]).readers if is_op(node, "Clip")]
    bounds = [scalar_of(value) for node in clips for value in node.inputs[1:3]]
    return max((abs(bound) for bound in bounds if bound is not None), default=0.0)


def effect_at(node: ir.Node, index: int) -> Effect | None:
    """What a sentinel does in one operator that reads it; None if the result depends on its magnitude."""
    if is_op(node, "Sigmoid", "Tanh"):
        return Effect.SATURATES
    if is_op(node, "Clip") and index == 0:
        bounds = [scalar_of(value) for value in node.inputs[1:3]]
        inside = len(bounds) == 2 and all(bound is not None and abs(bound) < SATURATED for bound in bounds)
        return Effect.SATURATES if inside else None
    if is_op(node, "ArgMax", "ArgMin"):
        return Effect.ORDERS
    if is_op(node, "TopK") and index == 0:
        values = node.outputs[0]
        return None if values.uses() or values.is_graph_output() else Effect.ORDERS
    return Effect.MASKS if is_op(node, "Softmax") else None


def _why_not_masked(edge: SentinelEdge, effect: Effect, reach: Reach) -> str:
    """Why sentinels that order or mask cannot be reduced on an edge; empty if they can."""
    if reach.summands or reach.merged or edge.node.op_type == "Concat":
        return "other values are added to it or merged with it on the way"
    sentinels = edge.array[edge.hits]
    if len(np.unique(sentinels)) > 1:
        return "it has sentinels of different magnitude, whose order counts"
    if effect is Effect.ORDERS:
        # Where fewer elements are left than are selected, scores plus a smaller sentinel would order the rest.
        return "" if is_op(edge.node, "Where") else "scores are added to it, which would order the masked elements"
    if sentinels.max() > 0:
        return "a positive sentinel selects one element of the Softmax"
    if any(is_op(user, "IsNaN") for node, _ in reach.readers for user, _ in node.outputs[0].uses()):
        return "a row that is masked entirely is NaN in the original and handled after the Softmax"
    return "" if is_op(edge.node, "Where") else _why_rows_masked(edge, reach)


def _why_rows_masked(edge: SentinelEdge, reach: Reach) -> str:
    """Why an added mask may mask a whole row of a Softmax; empty if no row is.

    In such a row the sentinel rounds the scores away, so that all probabilities are equal; a smaller one does not.
    """
    shape, rows = shape_of(edge.node.outputs[0]), edge.array
    axes = {attribute(node, "axis", -1) for node, _ in reach.readers}
    direct = all(node.inputs[0] is edge.node.outputs[0] for node, _ in reach.readers)
    if shape is None or not direct or not axes <= {-1, len(shape) - 1}:
        return "the rows of the Softmax are not those of the mask"
    if rows.ndim == 0 or rows.shape[-1] != shape[-1]:
        return "it masks whole rows of the Softmax"
    return "" if (~edge.hits).any(axis=-1).all() else "it masks a whole row of the Softmax"
