"""Cut a planned graph into parts that compute wholly in integers or wholly in float, one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.model.edit import constant_of
from dovetail.model.segments import Segment, segment_models, segment_of
from dovetail.qdq.params import is_dequantize, is_quantize
from dovetail.targets.qairt.coloring import Domain


@dataclass(frozen=True, slots=True, eq=False)
class ModelPart:
    """One part: what it computes in, its nodes, and its model; tensors keep their names."""

    domain: Domain
    nodes: tuple[str, ...]
    model: ir.Model


def cut(model: ir.Model, of_node: Mapping[str, Domain]) -> tuple[ModelPart, ...]:
    """Cut a graph so that no part mixes integers and float.

    ``of_node``: what the nodes of the float graph compute in. In the emitted graph, Q and DQ of activations belong to
    the integer parts, so that parts exchange float tensors; a node that only reads constants belongs to its
    consumer.
    """
    ordered, groups = _ordered(model, of_node)
    copy = model.clone()
    nodes = {_key(node): node for node in copy.graph}
    sequence = [nodes[_key(node)] for node in ordered]
    copy.graph.remove(sequence)
    copy.graph.extend(sequence)
    segments, start = list[Segment](), 0
    for _, names in groups:
        segments.append(segment_of(copy, start, start + len(names)))
        start += len(names)
    models = segment_models(copy, segments)
    return tuple(ModelPart(d, names, part) for (d, names), part in zip(groups, models, strict=True))


def _key(node: ir.Node) -> str:
    return next(str(value.name) for value in node.outputs if value.name)


def _ordered(
    model: ir.Model, of_node: Mapping[str, Domain]
) -> tuple[list[ir.Node], list[tuple[Domain, tuple[str, ...]]]]:
    """The nodes in an order in which every part is contiguous, and the parts with the names of their nodes."""
    nodes = list(model.graph)
    constant = _constant_nodes(nodes)
    colors = _colors(nodes, of_node)
    waiting = [node for node in nodes if node not in constant]
    done: set[ir.Node] = set()
    order, groups = list[ir.Node](), list[tuple[Domain, tuple[str, ...]]]()
    while waiting:
        taken = max((_closure(waiting, done, constant, colors, domain) for domain in _KINDS), key=lambda t: len(t[1]))
        domain, members = taken
        sources = [source for node in members for source in _sources(node, constant)]
        part = [*dict.fromkeys(source for source in sources if source not in done), *members]
        order += part
        done.update(part)
        groups.append((domain, tuple(str(node.name) for node in part)))
        waiting = [node for node in waiting if node not in done]
    return order, groups


_KINDS = (Domain.INTEGER, Domain.FLOAT)


def _closure(
    waiting: Sequence[ir.Node],
    done: set[ir.Node],
    constant: set[ir.Node],
    colors: Mapping[ir.Node, Domain],
    domain: Domain,
) -> tuple[Domain, list[ir.Node]]:
    """All nodes of one kind that can be computed after those that are done, in graph order."""
    members: dict[ir.Node, None] = {}
    for node in waiting:  # in graph order, so that one pass finds all
        producers = [value.producer() for value in node.inputs if value is not None]
        ready = all(p is None or p in done or p in constant or p in members for p in producers)
        if ready and colors[node] in (domain, Domain.NEITHER):
            members[node] = None
    return domain, list(members)


def _constant_nodes(nodes: Sequence[ir.Node]) -> set[ir.Node]:
    """Nodes that only read constants, such as the DQ of a weight."""
    found: set[ir.Node] = set()
    for node in nodes:
        inputs = [value for value in node.inputs if value is not None]
        if all(constant_of(value) is not None or value.producer() in found for value in inputs):
            found.add(node)
    return found


def _sources(node: ir.Node, constant: set[ir.Node]) -> list[ir.Node]:
    """The nodes of constants that a node reads, with theirs first."""
    producers = [value.producer() for value in node.inputs if value is not None]
    return [s for p in producers if p is not None and p in constant for s in (*_sources(p, constant), p)]


def _colors(nodes: Sequence[ir.Node], of_node: Mapping[str, Domain]) -> dict[ir.Node, Domain]:
    """What every node computes in: as planned, Q and DQ in integers, what was inserted beside them in float."""
    colors = {}
    for node in nodes:
        if is_quantize(node) or is_dequantize(node):
            colors[node] = Domain.INTEGER
        else:
            colors[node] = of_node.get(str(node.name), Domain.FLOAT)
    return colors
