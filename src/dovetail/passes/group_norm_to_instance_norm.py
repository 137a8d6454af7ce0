"""Rewrite GroupNormalization as exporters do: Reshape to groups, InstanceNormalization, Reshape back, Mul and Add."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def group_norm_to_instance_norm(model: ir.Model) -> PassRecord:
    """Replace every GroupNormalization with constant scale and bias."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "GroupNormalization"):
            continue
        where, shape = origin_of(node.outputs[0]).name, shape_of(node.inputs[0])
        scale, bias = (constant_of(value) for value in node.inputs[1:3])
        if shape is None or scale is None or bias is None:
            declined.append(Site(where, "its shape is unknown, or its scale or bias is not constant"))
            continue
        scale, bias = (np.repeat(array, shape[1] // array.size) for array in (scale, bias))  # opset 18: one per group
        _rewrite(model.graph, node, shape, scale, bias)
        changed.append(Site(where, "GroupNormalization rewritten as InstanceNormalization"))
    return PassRecord("group_norm_to_instance_norm", tuple(changed), tuple(declined))


def _rewrite(graph: ir.Graph, node: ir.Node, shape: tuple[int, ...], scale: Array, bias: Array) -> None:
    data, output = node.inputs[0], node.outputs[0]
    if data is None:
        raise TypeError(f"node {node.name!r} has no input")
    groups = int(attribute(node, "num_groups", 1))
    flat = (shape[0], groups, math.prod(shape[1:]) // groups)
    ones, zeros = (
        edit.add_initializer(graph, np.full(groups, value, np.float32), name=f"{output.name}/{name}", source=output)
        for name, value in (("ones", 1.0), ("zeros", 0.0))
    )
    new = edit.insert(
        node,
        "InstanceNormalization",
        [insert_step(node, data, Step("Reshape", flat), replaces=[]), ones, zeros],
        attributes={"epsilon": attribute(node, "epsilon", 1e-5)},
        source=output,
        replaces=[node],
        shape=flat,
    )
    new = insert_step(node, new, Step("Reshape", shape), replaces=[])
    new = multiply_and_add(node, new, scale, bias)
    edit.replace_value(output, new)
    edit.remove_dead(graph, [node])


def multiply_and_add(before: ir.Node, value: ir.Value, scale: Array, bias: Array) -> ir.Value:
    """Insert a Mul and an Add by a number per channel, axis 1, each only if it changes something."""
    shape = shape_of(value) or ()
    for op, array, neutral in (("Mul", scale, 1.0), ("Add", bias, 0.0)):
        if np.any(array != neutral):
            constant = edit.add_initializer(
                edit.graph_of(before),
                array.reshape(-1, *(1 for _ in shape[2:])),
                name=f"{before.outputs[0].name}/{op.lower()}",
                source=before.outputs[0],
            )
            value = edit.insert(before, op, [value, constant], source=before.outputs[0], replaces=[], shape=shape)
    return value
