"""Compute elementwise operators on tensors of rank 6 and more in rank 5, the highest rank that HTP supports.

Deformable attention computes its sampling points as [batch, query, head, level, point, 2]. Axes of size 1 are removed
first, then adjacent axes that are broadcast together are merged. Reshapes are inserted only at the inputs and outputs
of the merged region; chains of reshapes and transposes alone are left to other passes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.elementwise import ELEMENTWISE
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

MAX_RANK = 5
_ALONG_AN_AXIS = ("Concat", "Softmax", "Slice")

Shape = tuple[int, ...]


@dataclass
class _Region:
    """Connected nodes on tensors of one rank; ``pinned`` holds the axes that a node works along."""

    rank: int
    nodes: list[ir.Node] = field(default_factory=list)
    pinned: set[int] = field(default_factory=set)

    def shapes(self) -> list[Shape]:
        """The shapes of all operands and results, padded with leading ones to the same rank."""
        values = {v for node in self.nodes for v in (*_operands(node), *node.outputs)}
        return [self.padded(shape_of(v) or ()) for v in values]

    def padded(self, shape: Shape) -> Shape:
        return (1,) * (self.rank - len(shape)) + shape


def reduce_elementwise_rank(model: ir.Model) -> PassRecord:
    """Reduce elementwise operators, and Slice, Concat and Softmax between them, to rank 5."""
    changed: list[Site] = []
    declined: list[Site] = []
    seen: set[ir.Node] = set()
    for node in list(model.graph):
        if node in seen or _rank(node) <= MAX_RANK or _axes(node) is None:
            continue
        region = _grow(node)
        seen.update(region.nodes)
        where = origin_of(region.nodes[0].outputs[0]).name
        groups = _groups(region)
        if groups is None:
            declined.append(
                Site(
                    where,
                    f"the rank stays above {MAX_RANK}: its axes are broadcast differently, so they cannot be merged",
                )
            )
            continue
        _rewrite(model.graph, region, groups)
        changed.append(Site(where, f"{len(region.nodes)} nodes of rank {region.rank} reduced to rank {len(groups)}"))
    return PassRecord("reduce_elementwise_rank", tuple(changed), tuple(declined))


def _rank(node: ir.Node) -> int:
    return max((len(shape_of(v) or ()) for v in (*_operands(node), *node.outputs)), default=0)


def _operands(node: ir.Node) -> tuple[ir.Value, ...]:
    """The inputs that are broadcast to the axes of the result."""
    data = node.inputs[:1] if is_op(node, "Slice", "Clip") else node.inputs
    return tuple(v for v in data if v is not None)


def _axes(node: ir.Node) -> set[int] | None:
    """The axes that a node works along; None for a node that cannot be in a region."""
    values = (*_operands(node), *node.outputs)
    if len(node.outputs) != 1 or any(shape_of(v) is None for v in values) or node.domain != "":
        return None
    rank = _rank(node)
    if node.op_type in ELEMENTWISE:
        return set()
    if not is_op(node, *_ALONG_AN_AXIS):
        return None
    if node.op_type != "Slice":
        return {int(attribute(node, "axis", -1)) % rank}
    axes = constant_of(node.inputs[3]) if len(node.inputs) > 3 else None
    return None if axes is None else {int(axis) % rank for axis in axes.reshape(-1)}


def _grow(start: ir.Node) -> _Region:
    """The node and all nodes that are connected to it by tensors of its rank, in graph order."""
    region = _Region(_rank(start))
    members, pending = {start}, [start]
    while pending:
        node = pending.pop()
        region.pinned |= _axes(node) or set()
        for value in (*_operands(node), *node.outputs):
            if len(shape_of(value) or ()) <= MAX_RANK:
                continue
            for neighbor in (value.producer(), *(use.node for use in value.uses())):
                if neighbor is None or neighbor in members or _axes(neighbor) is None or _rank(neighbor) != region.rank:
                    continue
                members.add(neighbor)
                pending.append(neighbor)
    region.nodes = [node for node in edit.graph_of(start) if node in members]
    return region


def _groups(region: _Region) -> list[list[int]] | None:
    """The axes of the lower rank, each as the old axes that it merges; None if rank 5 cannot be reached."""
    shapes = region.shapes()
    single = [all(shape[axis] == 1 for shape in shapes) and axis not in region.pinned for axis in range(region.rank)]
    groups = [[axis] for axis in range(region.rank)]
    for axis in reversed(range(region.rank)):  # inner axes first, so that the batch axis is kept
        if len(groups) > MAX_RANK and single[axis]:
            groups.remove([axis])
    while len(groups) > MAX_RANK:
        adjacent = itertools.pairwise(groups)
        index = next((i for i, (left, right) in enumerate(adjacent) if _can_merge(region, shapes, left, right)), None)
        if index is None:
            return None
        groups[index : index + 2] = [groups[index] + groups[index + 1]]
    return groups


def _can_merge(region: _Region, shapes: list[Shape], left: list[int], right: list[int]) -> bool:
    """Whether every tensor is broadcast along both groups of axes, or along neither."""
    if region.pinned & {*left, *right}:
        return False
    return all((_size(shape, left) == 1) == (_size(shape, right) == 1) for shape in shapes)


def _size(shape: Shape, group: list[int]) -> int:
    return math.prod(shape[axis] for axis in group)


def _rewrite(graph: ir.Graph, region: _Region, groups: list[list[int]]) -> None:
    merged: dict[ir.Value, ir.Value] = {}
    members = set(region.nodes)
    for node in region.nodes:
        inputs: list[ir.Value | None] = list(node.inputs)
        for index, value in enumerate(_operands(node)):
            if value not in merged:
                merged[value] = _entering(node, value, region, groups)
            inputs[index] = merged[value]
        output = node.outputs[0]
        shape = _merged_shape(region, groups, output)
        attributes = dict(node.attributes)
        if is_op(node, "Slice"):
            inputs[3] = _moved_axes(graph, node, region, groups)
        elif is_op(node, *_ALONG_AN_AXIS):
            attributes["axis"] = ir.AttrInt64("axis", groups.index([next(iter(_axes(node) or ()))]))
        new = edit.insert(
            node, node.op_type, inputs, attributes=attributes, source=output, replaces=[node], shape=shape,
            dtype=output.dtype,
        )  # fmt: skip
        merged[output] = new
    for node in region.nodes:
        output = node.outputs[0]
        new = merged[output]
        if output.is_graph_output() or any(use.node not in members for use in output.uses()):
            new = insert_step(node, new, Step("Reshape", shape_of(output) or ()), replaces=[])
        edit.replace_value(output, new)
    edit.remove_dead(graph, reversed(region.nodes))


def _entering(node: ir.Node, value: ir.Value, region: _Region, groups: list[list[int]]) -> ir.Value:
    """An input of the region in the merged shape; a single element stays as it is."""
    old, shape = shape_of(value) or (), _merged_shape(region, groups, value)
    array = constant_of(value)
    if math.prod(old) == 1 and len(old) <= MAX_RANK:
        return value
    if array is not None:
        name = f"{value.name}/merged"
        return edit.add_initializer(edit.graph_of(node), array.reshape(shape), name=name, source=value)
    return insert_step(node, value, Step("Reshape", shape), replaces=[])


def _merged_shape(region: _Region, groups: list[list[int]], value: ir.Value) -> Shape:
    shape = region.padded(shape_of(value) or ())
    return tuple(_size(shape, group) for group in groups)


def _moved_axes(graph: ir.Graph, node: ir.Node, region: _Region, groups: list[list[int]]) -> ir.Value:
    old = node.inputs[3]
    axes = constant_of(old)
    if old is None or axes is None:
        raise TypeError(f"the axes of {node.name!r} are not constant")
    moved = np.array([groups.index([int(axis) % region.rank]) for axis in axes.reshape(-1)], dtype=axes.dtype)
    return edit.add_initializer(graph, moved, name=f"{old.name}/moved", source=old)
