"""Constants that are masks: they are only added to the input of a Softmax, or substituted for it by a Where."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from dovetail.model.attention import VALUE_PRESERVING_OPS, ScalePlace, scale_at
from dovetail.model.edit import constant_of, is_op

_PASSED_THROUGH = (*VALUE_PRESERVING_OPS, "Expand")


@dataclass(slots=True)
class _SoftmaxInputs:
    """The nodes upstream of one Softmax and their constant operands, with the factor that scales each downstream."""

    edges: dict[tuple[ir.Node, int], float] = field(default_factory=dict)
    nodes: dict[ir.Node, float] = field(default_factory=dict)

    def collect(self, value: ir.Value | None, factor: float) -> None:
        node = None if value is None else value.producer()
        if node is None or factor <= self.nodes.get(node, -1.0):
            return
        scale = scale_at(node, ScalePlace.SCORES)
        if is_op(node, *_PASSED_THROUGH):
            factors = {0: factor}
        elif is_op(node, "Add"):
            factors = {0: factor, 1: factor}
        elif is_op(node, "Where"):
            factors = {1: factor, 2: factor}
        elif scale is not None and scale.factor is not None:
            factors = {node.inputs.index(scale.data): factor * abs(scale.factor)}
        else:
            return
        self.nodes[node] = factor
        for index, input_factor in factors.items():
            if constant_of(node.inputs[index]) is None:
                self.collect(node.inputs[index], input_factor)
            elif is_op(node, "Add", "Where"):
                self.edges[node, index] = max(input_factor, self.edges.get((node, index), 0.0))


def mask_limits(graph: ir.Graph, max_sum: float) -> dict[tuple[ir.Node, int], float]:
    """Mask operands -> the largest magnitude to which the mask may be clamped so that the sum stays in float16.

    An operand is (node, input index). The masks added before one Softmax, after scaling, sum to at most
    ``max_sum``; one mask gets at most half of it.
    """
    traces = list(_traces(graph))
    inside = {node for trace in traces for node in trace.nodes}
    while outside := {node for node in inside if not _stays_inside(node, inside)}:
        inside -= outside
    limits: dict[tuple[ir.Node, int], float] = {}
    for trace in traces:
        adds = sum(is_op(node, "Add") for node in trace.nodes)
        for (node, index), factor in trace.edges.items():
            if node in inside:
                limit = max_sum / max(2, adds) / max(1.0, factor)
                limits[node, index] = min(limit, limits.get((node, index), math.inf))
    return limits


def _traces(graph: ir.Graph) -> Iterator[_SoftmaxInputs]:
    for node in graph:
        if is_op(node, "Softmax"):
            trace = _SoftmaxInputs()
            trace.collect(node.inputs[0], 1.0)
            yield trace


def _stays_inside(node: ir.Node, inside: set[ir.Node]) -> bool:
    """Whether the output is only used by nodes of the set and by Softmax."""
    output = node.outputs[0]
    return not output.is_graph_output() and all(
        consumer in inside or is_op(consumer, "Softmax") for consumer, _ in output.uses()
    )
