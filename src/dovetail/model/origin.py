"""The trail from every tensor and node back to its name in the caller's file.

The trail is kept in ``metadata_props``, so it survives saving and loading. A value whose numbers are those of an
original tensor, or of the only part of it that is read, is *exact*; a value that a pass made is *derived* from the
original tensor named.
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
    """Where a tensor comes from: its original name, whether it is that tensor or made from it, and further original
    tensors that were found equal to it."""

    name: str
    exact: bool = True
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


def stamp(model: ir.Model, names: Container[str] | None = None) -> None:
    """Write every value's and node's own name into its trail; called once, when the model is read.

    ``names`` are those in the caller's file: a value that is not among them (made by inlining a function or raising
    the opset) is derived from the nearest one that it feeds.
    """
    for value in each_value(model.graph):
        nearest = value if names is None else _nearest(model.graph, value, names)
        value.metadata_props[_NAME] = nearest.name or ""
        if nearest is not value:
            value.metadata_props[_DERIVED] = "1"
    for node in model.graph.all_nodes():
        node.metadata_props[_NODES] = node.name or ""


def origin_of(value: ir.Value) -> Origin:
    """The original tensor of a value; a value without a trail is its own origin."""
    trail = value.metadata_props.get(_NAME)
    if trail is None:
        return Origin(value.name or "", exact=False)
    name, *aliases = trail.split("\n")
    return Origin(name, _DERIVED not in value.metadata_props, tuple(aliases))


def carry(new: ir.Value, old: ir.Value) -> None:
    """Say that ``new`` is what ``old`` was."""
    new.metadata_props[_NAME] = "\n".join(origin_of(old).names)
    if origin_of(old).exact:
        new.metadata_props.pop(_DERIVED, None)
    else:
        new.metadata_props[_DERIVED] = "1"


def add_alias(kept: ir.Value, removed: ir.Value) -> None:
    """Say that ``removed`` held the same numbers as ``kept``, so that it is still found by its name."""
    if origin_of(removed).exact:
        names = dict.fromkeys((*origin_of(kept).names, *origin_of(removed).names))
        kept.metadata_props[_NAME] = "\n".join(names)


def derive(new: ir.Value, source: ir.Value) -> None:
    """Say that a pass made ``new`` from ``source``."""
    new.metadata_props[_NAME] = origin_of(source).name
    new.metadata_props[_DERIVED] = "1"


def nodes_of(node: ir.Node) -> tuple[str, ...]:
    """The original nodes that a node stands for."""
    trail = node.metadata_props.get(_NODES)
    return tuple(trail.split("\n")) if trail else ()


def stand_for(new: ir.Node, old: Iterable[ir.Node]) -> None:
    """Say that ``new`` does the work of the ``old`` nodes."""
    names = dict.fromkeys(name for node in old for name in nodes_of(node))
    new.metadata_props[_NODES] = "\n".join(names)


def _nearest(graph: ir.Graph, value: ir.Value, names: Container[str]) -> ir.Value:
    while value.name not in names:
        reader = next(iter(value.uses()), None)
        if reader is None:  # an output of a subgraph, or read by nobody
            return graph.outputs[0]
        value = reader.node.outputs[0]
    return value


def adopt_lost(before: ir.Graph, after: ir.Graph) -> None:
    """Let what is left answer to the names of what was fused away.

    A node of the original that no node stands for, and its tensors, go to the nearest node behind it that still writes
    an original tensor: a GELU made of five nodes is found by the name of any of them.
    """
    kept = {name for node in after.all_nodes() for name in nodes_of(node)}
    writers = {name: node for node in after for v in node.outputs if origin_of(v).exact for name in origin_of(v).names}
    for node in before:
        lost = [v for v in node.outputs if v.name not in writers]
        if (not lost and node.name in kept) or not any(v is not None and not v.is_initializer() for v in node.inputs):
            continue
        own = [writers[v.name] for v in node.outputs if v.name in writers]
        for heir in own or _nearest_writers(lost, writers):
            if node.name and node.name not in kept:
                heir.metadata_props[_NODES] = "\n".join(dict.fromkeys((*nodes_of(heir), node.name)))
            if lost:
                tensors = dict.fromkeys((*inside_of(heir), *(v.name or "" for v in lost)))
                heir.metadata_props[_INSIDE] = "\n".join(tensors)


def inside_of(node: ir.Node) -> tuple[str, ...]:
    """The original tensors that were fused into a node."""
    trail = node.metadata_props.get(_INSIDE)
    return tuple(trail.split("\n")) if trail else ()


def _nearest_writers(lost: list[ir.Value], writers: dict[str, ir.Node]) -> list[ir.Node]:
    found: dict[ir.Node, None] = {}
    pending, seen = [node for value in lost for node, _ in value.uses()], set[ir.Node]()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        heirs = [writers[v.name] for v in node.outputs if v.name in writers]
        found.update(dict.fromkeys(heirs))
        if not heirs:
            pending += [user for v in node.outputs for user, _ in v.uses()]
    return list(found)


def each_value(graph: ir.Graph) -> Iterable[ir.Value]:
    """Every value of a graph: inputs, constants, then what the nodes write, subgraphs included."""
    for each in (graph, *graph.subgraphs()):
        yield from each.inputs
        yield from each.initializers.values()
        for node in each:
            yield from node.outputs
