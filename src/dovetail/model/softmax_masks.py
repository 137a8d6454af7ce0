"""Constants that mask: those that are only added to, or chosen instead of, what a Softmax reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from dovetail.model.attention import SAME_NUMBERS, ScalePlace, scale_at
from dovetail.model.edit import constant_of, is_op

_HANDED_ON = (*SAME_NUMBERS, "Expand")


@dataclass(slots=True)
class _Walk:
    """From one Softmax up: constant operands, and the nodes passed, with the factor that each is scaled by below."""

    edges: dict[tuple[ir.Node, int], float] = field(default_factory=dict)
    passed: dict[ir.Node, float] = field(default_factory=dict)

    def up(self, value: ir.Value | None, factor: float) -> None:
        node = None if value is None else value.producer()
        if node is None or factor <= self.passed.get(node, -1.0):
            return
        scale = scale_at(node, ScalePlace.SCORES)
        if is_op(node, *_HANDED_ON):
            read = {0: factor}
        elif is_op(node, "Add"):
            read = {0: factor, 1: factor}
        elif is_op(node, "Where"):
            read = {1: factor, 2: factor}
        elif scale is not None and scale.factor is not None:
            read = {node.inputs.index(scale.data): factor * abs(scale.factor)}
        else:
            return
        self.passed[node] = factor
        for index, below in read.items():
            if constant_of(node.inputs[index]) is None:
                self.up(node.inputs[index], below)
            elif is_op(node, "Add", "Where"):
                self.edges[node, index] = max(below, self.edges.get((node, index), 0.0))


def mask_limits(graph: ir.Graph, room: float) -> dict[tuple[ir.Node, int], float]:
    """Constant operands (node, input) that nothing but a Softmax sees -> how far down each may reach, so that all of
    them together, scaled as they are, stay within ``room``; half of it is the most that one takes."""
    walks = list(_walks(graph))
    passed = {node for walk in walks for node in walk.passed}
    while outside := {node for node in passed if not _stays_inside(node, passed)}:
        passed -= outside
    limits: dict[tuple[ir.Node, int], float] = {}
    for walk in walks:
        added = sum(is_op(node, "Add") for node in walk.passed)
        for (node, index), factor in walk.edges.items():
            if node in passed:
                limit = room / max(2, added) / max(1.0, factor)
                limits[node, index] = min(limit, limits.get((node, index), math.inf))
    return limits


def _walks(graph: ir.Graph) -> Iterator[_Walk]:
    for node in graph:
        if is_op(node, "Softmax"):
            walk = _Walk()
            walk.up(node.inputs[0], 1.0)
            yield walk


def _stays_inside(node: ir.Node, passed: set[ir.Node]) -> bool:
    output = node.outputs[0]
    return not output.is_graph_output() and all(user in passed or is_op(user, "Softmax") for user, _ in output.uses())
