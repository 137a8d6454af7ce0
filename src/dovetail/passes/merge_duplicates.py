"""Merge nodes that compute the same thing from the same inputs."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.evaluate import RANDOM
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

# Constants up to this size are compared by value: exporters may or may not share shapes and axes.
_COMPARED_BYTES = 1024


def merge_duplicates(model: ir.Model) -> PassRecord:
    """Replace a repeated node by the first one; exporters differ in how often they repeat a computation."""
    changed: list[Site] = []
    first: dict[Hashable, ir.Node] = {}
    for node in model.graph:
        key = _key(node)
        if key is None:
            continue
        kept = first.setdefault(key, node)
        if kept is node or any(value.is_graph_output() for value in node.outputs):
            continue
        changed.append(
            Site(origin_of(node.outputs[0]).name, f"merged into its duplicate {origin_of(kept.outputs[0]).name!r}")
        )
        for old, new in zip(node.outputs, kept.outputs, strict=True):
            edit.replace_value(old, new)
        edit.remove_dead(model.graph, [node])
    return PassRecord("merge_duplicates", tuple(changed))


def _key(node: ir.Node) -> Hashable | None:
    """A key for what a node computes, or None if two runs of it may differ."""
    if node.op_type in RANDOM or any(attr.type in _GRAPHS for attr in node.attributes.values()):
        return None
    attributes = tuple(sorted((attr.name, _attribute_key(attr)) for attr in node.attributes.values()))
    inputs = tuple(_input_key(value) for value in node.inputs)
    names = tuple(bool(value.name) for value in node.outputs)
    return (node.domain, node.op_type, node.overload, attributes, inputs, names)


def _attribute_key(attr: ir.Attr) -> bytes:
    return ir.serde.serialize_attribute(attr).SerializeToString(deterministic=True)


def _input_key(value: ir.Value | None) -> Hashable:
    if value is None:
        return None
    array = edit.constant_of(value) if value.const_value is not None else None
    if array is None or array.nbytes > _COMPARED_BYTES or array.dtype == object:
        return id(value)
    return (str(array.dtype), array.shape, array.tobytes())


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
