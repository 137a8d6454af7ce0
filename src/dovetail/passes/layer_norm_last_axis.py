"""Rewrite LayerNormalization over several axes as one over the last axis, the only one that HTP supports."""

from __future__ import annotations

import math

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def layer_norm_last_axis(model: ir.Model) -> PassRecord:
    """Insert a Reshape before and after every LayerNormalization over more than the last axis."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "LayerNormalization") or attribute(node, "axis", -1) == -1:
            continue
        where, shape = origin_of(node.outputs[0]).name, shape_of(node.inputs[0])
        axes = 0 if shape is None else len(shape) - int(attribute(node, "axis", -1)) % len(shape)
        if shape is None or len(node.outputs) > 1 or any(constant_of(value) is None for value in node.inputs[1:]):
            declined.append(Site(where, "its shape is unknown, its scale or bias is not constant, or its mean is used"))
        elif axes > 1:
            _rewrite(model.graph, node, shape, shape[len(shape) - axes :])
            changed.append(Site(where, f"{axes} normalized axes reshaped to one"))
    return PassRecord("layer_norm_last_axis", tuple(changed), tuple(declined))


def _rewrite(graph: ir.Graph, node: ir.Node, shape: tuple[int, ...], normalized: tuple[int, ...]) -> None:
    data, output = node.inputs[0], node.outputs[0]
    if data is None:
        raise TypeError(f"node {node.name!r} has no input")
    flat = (*shape[: len(shape) - len(normalized)], math.prod(normalized))
    inputs = [insert_step(node, data, Step("Reshape", flat), replaces=[])]
    for value in node.inputs[1:]:
        array = constant_of(value)
        if value is not None and array is not None:
            inputs.append(edit.add_initializer(graph, array.reshape(-1), name=f"{value.name}/flat", source=value))
    attributes = {"axis": -1, "epsilon": attribute(node, "epsilon", 1e-5)}
    new = edit.insert(
        node, "LayerNormalization", inputs, attributes=attributes, source=output, replaces=[node], shape=flat
    )
    edit.replace_value(output, insert_step(node, new, Step("Reshape", shape), replaces=[]))
    edit.remove_dead(graph, [node])
