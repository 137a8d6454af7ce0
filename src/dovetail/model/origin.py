"""The origin of every tensor and node: its name in the user's file.

Origins are kept in ``metadata_props``, so they survive saving and loading. A value that equals an original tensor, or
the only part of it that is used, is *exact*; any other value that a pass created is *derived* from an original tensor.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

import onnx_ir as ir

_NAME = "dovetail.origin"
_DERIVED = "dovetail.derived"
_NODES = "dovetail.nodes"
_INSIDE = "dovetail.inside"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a tensor comes from: the name of the original tensor, whether it equals that tensor or is derived from it,
    and the names of further original tensors that are equal to it."""

    name: str
    exact: bool = True
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


def stamp(model: ir.Model, names: Container[str] | None = None) -> None:
    """Record every value's and node's own name as its origin; called once, when the model is read.

    ``names`` are those in the user's file: a value that is not among them (created by inlining a function or raising
    the opset) is derived from the nearest such value downstream.
    """
    for value in each_value(model.graph):
        nearest = value if names is None else _nearest(model.graph, value, names)
        value.metadata_props[_NAME] = nearest.name or ""
        value.metadata_props.pop(_DERIVED, None)  # of the run that wrote the file
        if nearest is not value:
            value.metadata_props[_DERIVED] = "1"
    for node in model.graph.all_nodes():
        node.metadata_props[_NODES] = node.name or ""


def origin_of(value: ir.Value) -> Origin:
    """The original tensor of a value; a value without a recorded origin is its own origin."""
    recorded = value.metadata_props.get(_NAME)
    if recorded is None:
        return Origin(value.name or "", exact=False)
    name, *aliases = recorded.split("\n")
    return Origin(name, _DERIVED not in value.metadata_props, tuple(aliases))


def carry(new: ir.Value, old: ir.Value) -> None:
    """Record that ``new`` has the origin of ``old``."""
    new.metadata_props[_NAME] = "\n".join(origin_of(old).names)
    if origin_of(old).exact:
        new.metadata_props.pop(_DERIVED, None)
    else:
        new.metadata_props[_DERIVED] = "1"


def add_alias(kept: ir.Value, removed: ir.Value) -> None:
    """Record that ``removed`` was equal to ``kept``, so that ``kept`` is found by both names."""
    if origin_of(removed).exact:
        names = dict.fromkeys((*origin_of(kept).names, *origin_of(removed).names))
        kept.metadata_props[_NAME] = "\n".join(names)


def derive(new: ir.Value, source: ir.Value) -> None:
    """Record that a pass derived ``new`` from ``source``."""
    new.metadata_props[_NAME] = origin_of(source).name
    new.metadata_props[_DERIVED] = "1"


def nodes_of(node: ir.Node) -> tuple[str, ...]:
    """The names of the original nodes that a node replaces."""
    recorded = node.metadata_props.get(_NODES)
    return tuple(recorded.split("\n")) if recorded else ()


def record_replaced(new: ir.Node, old: Iterable[ir.Node]) -> None:
    """Record that ``new`` replaces the ``old`` nodes."""
    names = dict.fromkeys(name for node in old for name in nodes_of(node))
    new.metadata_props[_NODES] = "\n".join(names)


def _nearest(graph: ir.Graph, value: ir.Value, names: Container[str]) -> ir.Value:
    while value.name not in names:
        use = next(iter(value.uses()), None)
        if use is None:  # an output of a subgraph, or without consumers
            return graph.outputs[0]
        value = use.node.outputs[0]
    return value


def record_fused_names(before: ir.Graph, after: ir.Graph) -> None:
    """Record, on each remaining node, the names of the nodes and tensors fused into it.

    An original node that no remaining node replaces, and its tensors, are recorded on the nearest nodes downstream that
    still write an original tensor: a GELU fused from five nodes is found by the name of any of them.
    """
    kept = {name for node in after.all_nodes() for name in nodes_of(node)}
    producers = {
        name: node for node in after for v in node.outputs if origin_of(v).exact for name in origin_of(v).names
    }
    for node in before:
        lost = [v for v in node.outputs if v.name not in producers]
        if (not lost and node.name in kept) or not any(v is not None and not v.is_initializer() for v in node.inputs):
            continue
        own = [producers[v.name] for v in node.outputs if v.name in producers]
        for owner in own or _nearest_producers(lost, producers):
            if node.name and node.name not in kept:
                owner.metadata_props[_NODES] = "\n".join(dict.fromkeys((*nodes_of(owner), node.name)))
            if lost:
                tensors = dict.fromkeys((*fused_tensors_of(owner), *(v.name or "" for v in lost)))
                owner.metadata_props[_INSIDE] = "\n".join(tensors)


def fused_tensors_of(node: ir.Node) -> tuple[str, ...]:
    """The original tensors that were fused into a node."""
    recorded = node.metadata_props.get(_INSIDE)
    return tuple(recorded.split("\n")) if recorded else ()


def _nearest_producers(lost: list[ir.Value], producers: dict[str, ir.Node]) -> list[ir.Node]:
    nearest: dict[ir.Node, None] = {}
    pending, seen = [node for value in lost for node, _ in value.uses()], set[ir.Node]()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        remaining = [producers[v.name] for v in node.outputs if v.name in producers]
        nearest.update(dict.fromkeys(remaining))
        if not remaining:
            pending += [consumer for v in node.outputs for consumer, _ in v.uses()]
    return list(nearest)


def each_value(graph: ir.Graph) -> Iterable[ir.Value]:
    """Every value of a graph and its subgraphs: inputs, initializers, then the outputs of the nodes."""
    for scope in (graph, *graph.subgraphs()):
        yield from scope.inputs
        yield from scope.initializers.values()
        for node in scope:
            yield from node.outputs
