"""Rewrite the InstanceNormalization of a group normalization as LayerNormalization over the elements of each group.

Exporters write a group normalization as Reshape to groups, InstanceNormalization, Reshape back, Mul and Add.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site
from dovetail.passes.group_norm_to_instance_norm import multiply_and_add


def group_norm_to_layer_norm(model: ir.Model, applies: Callable[[ir.Node], bool] = lambda node: True) -> PassRecord:
    """Replace InstanceNormalization after a Reshape. ``applies``: which of them to replace."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if reshape_before(node) is None or not applies(node):
            continue
        where, shape = origin_of(node.outputs[0]).name, shape_of(node.inputs[0])
        scale, bias = (constant_of(value) for value in node.inputs[1:3])
        if shape is None or scale is None or bias is None:
            declined.append(Site(where, "its shape is unknown, or its scale or bias is not constant"))
            continue
        _rewrite(model.graph, node, shape, scale, bias)
        changed.append(Site(where, f"InstanceNormalization of {shape[1]} groups rewritten as LayerNormalization"))
    return PassRecord("group_norm_to_layer_norm", tuple(changed), tuple(declined))


def reshape_before(node: ir.Node) -> ir.Node | None:
    """The Reshape that makes the channels of an InstanceNormalization from another tensor's; None without one."""
    data = node.inputs[0] if is_op(node, "InstanceNormalization") else None
    producer = None if data is None else data.producer()
    return producer if is_op(producer, "Reshape") else None


def _rewrite(graph: ir.Graph, node: ir.Node, shape: tuple[int, ...], scale: Array, bias: Array) -> None:
    data, output = node.inputs[0], node.outputs[0]
    if data is None:
        raise TypeError(f"node {node.name!r} has no input")
    flat = (*shape[:2], math.prod(shape[2:]))
    new = data if shape == flat else insert_step(node, data, Step("Reshape", flat), replaces=[])
    ones, zeros = (
        edit.add_initializer(graph, np.full(flat[-1:], value, np.float32), name=f"{output.name}/{name}", source=output)
        for name, value in (("gamma", 1.0), ("beta", 0.0))
    )
    attributes = {"axis": -1, "epsilon": attribute(node, "epsilon", 1e-5)}
    inputs = [new, ones, zeros]
    new = edit.insert(
        node, "LayerNormalization", inputs, attributes=attributes, source=output, replaces=[node], shape=flat
    )
    if shape != flat:
        new = insert_step(node, new, Step("Reshape", shape), replaces=[])
    new = multiply_and_add(node, new, scale, bias)
    edit.replace_value(output, new)
    edit.remove_dead(graph, [node])
