"""A graph as consecutive segments, each a model of its own: what comes before a change need not be computed again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.model.edit import constant_of, shape_of


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive nodes, by index: ``start`` to ``stop`` (exclusive).

    ``inputs``: the tensors that they read and do not compute. ``outputs``: those that later segments read, and the
    graph outputs among what they compute.
    """

    start: int
    stop: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def segments_of(model: ir.Model, count: int) -> tuple[Segment, ...]:
    """At most ``count`` segments of about the same number of nodes, cut where the fewest elements cross."""
    nodes = list(model.graph)
    last_use = _last_uses(nodes)
    outer = {*model.graph.inputs, *(value for node in nodes for value in node.outputs)}
    cuts = [0, *_cuts(nodes, last_use, max(1, min(count, len(nodes)))), len(nodes)]
    segments = (_segment(nodes[start:stop], start, last_use, outer) for start, stop in itertools.pairwise(cuts))
    return tuple(segment for segment in segments if segment.outputs)  # without one that only has constants


def segment_of(model: ir.Model, start: int, stop: int) -> Segment:
    """The segment of the nodes from ``start`` to ``stop``."""
    nodes = list(model.graph)
    outer = {*model.graph.inputs, *(value for node in nodes for value in node.outputs)}
    return _segment(nodes[start:stop], start, _last_uses(nodes), outer)


def segment_models(model: ir.Model, segments: Sequence[Segment]) -> list[ir.Model]:
    """The nodes of each segment as a model; tensors keep their names."""
    nodes = list(model.graph)
    values = {value.name: value for value in (*model.graph.inputs, *(v for node in nodes for v in node.outputs))}
    return [
        ir.Model(
            _view(
                model.graph,
                nodes[segment.start : segment.stop],
                [values[name] for name in segment.inputs],
                [values[name] for name in segment.outputs],
            ).clone(),
            ir_version=model.ir_version,
        )
        for segment in segments
    ]


def _view(
    graph: ir.Graph, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> ir.GraphView:
    """Some nodes of a graph, with the initializers and the Constant nodes that they read."""
    read = dict.fromkeys(value for node in nodes for value in _read_constants(node))
    producers = dict.fromkeys(node for value in read if (node := value.producer()) is not None)
    return ir.GraphView(
        inputs,
        outputs,
        nodes=(*(node for node in producers if node not in nodes), *nodes),
        initializers=[value for value in read if value.is_initializer() and value.graph is graph],
        opset_imports=graph.opset_imports,
        name=graph.name,
    )


def _last_uses(nodes: Sequence[ir.Node]) -> dict[ir.Value, int]:
    """The index of the last node that reads a tensor; for a graph output one more than that of the last node."""
    last: dict[ir.Value, int] = {}
    for index, node in enumerate(nodes):
        for value in _read(node):
            last[value] = max(last.get(value, index), index)  # an output that is read again stays an output
        for value in node.outputs:
            last[value] = len(nodes) if value.is_graph_output() else index
    return last


def _read(node: ir.Node) -> list[ir.Value]:
    """The tensors that a node reads, also in its subgraphs; constants are not tensors."""
    return [value for value in _operands(node) if constant_of(value) is None]


def _read_constants(node: ir.Node) -> list[ir.Value]:
    return [value for value in _operands(node) if constant_of(value) is not None and value.graph is node.graph]


def _operands(node: ir.Node) -> dict[ir.Value, None]:
    """All values that a node reads, also in its subgraphs."""
    graphs = list(subgraphs_of(node))
    inner = [value for graph in graphs for each in graph for value in _operands(each)]
    inner += [value for graph in graphs for value in graph.outputs]  # a branch may only pass on an outer tensor
    return dict.fromkeys(value for value in (*node.inputs, *inner) if value is not None)


def subgraphs_of(node: ir.Node) -> Iterator[ir.Graph]:
    """The subgraphs of a node, for example the branches of an If."""
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type is ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _cuts(nodes: Sequence[ir.Node], last_use: dict[ir.Value, int], count: int) -> list[int]:
    """The positions between segments: each the cheapest within half a segment of where equal segments would end."""
    crossing = _crossing_elements(nodes, last_use)
    length, cuts = len(nodes) / count, list[int]()
    for number in range(1, count):
        low = max(math.ceil((number - 0.5) * length), (cuts[-1] if cuts else 0) + 1)
        high = min(math.ceil((number + 0.5) * length), len(nodes))
        if low < high:
            cuts.append(min(range(low, high), key=lambda position: (crossing[position], position)))
    return cuts


def _crossing_elements(nodes: Sequence[ir.Node], last_use: dict[ir.Value, int]) -> list[int]:
    """For every position, the elements of the tensors that are computed before it and read after it."""
    changes = [0] * (len(nodes) + 2)
    for index, node in enumerate(nodes):
        for value in node.outputs:
            size = math.prod(shape_of(value) or ())
            changes[index + 1] += size
            changes[last_use[value] + 1] -= size
    crossing, total = [], 0
    for change in changes:
        total += change
        crossing.append(total)
    return crossing


def _segment(nodes: Sequence[ir.Node], start: int, last_use: dict[ir.Value, int], outer: set[ir.Value]) -> Segment:
    """``outer``: the tensors of the graph itself, without those inside a subgraph of a node."""
    stop = start + len(nodes)
    computed = dict.fromkeys(value for node in nodes for value in node.outputs if value.name)
    read = dict.fromkeys(value for node in nodes for value in _read(node) if value in outer and value not in computed)
    later = [value for value in computed if last_use[value] >= stop]
    return Segment(start, stop, tuple(value.name or "" for value in read), tuple(value.name or "" for value in later))
