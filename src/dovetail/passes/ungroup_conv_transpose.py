"""Write a ConvTranspose with groups as one without: its weight has zeros between the channels of different groups."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def ungroup_conv_transpose(model: ir.Model) -> PassRecord:
    """Rewrite every ConvTranspose with groups, unless each group has one input and one output channel (depthwise).

    Its output channels then have a weight scale each; those of a grouped weight are shared between the groups.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_grouped(node):
            continue
        output, weight, groups = node.outputs[0], node.inputs[1], int(attribute(node, "group", 1))
        where, array = origin_of(output).name, constant_of(weight)
        if weight is None or array is None:
            declined.append(Site(where, "its weight is not constant"))
            continue
        inputs, outputs = array.shape[0] // groups, array.shape[1]
        dense = np.zeros((array.shape[0], groups * outputs, *array.shape[2:]), array.dtype)
        for group in range(groups):
            rows = slice(group * inputs, (group + 1) * inputs)
            dense[rows, group * outputs : (group + 1) * outputs] = array[rows]
        full = edit.add_initializer(model.graph, dense, name=f"{weight.name}/ungrouped", source=weight)
        new = edit.insert(
            node,
            "ConvTranspose",
            [node.inputs[0], full, *node.inputs[2:]],
            attributes={name: attr for name, attr in node.attributes.items() if name != "group"},
            source=output,
            replaces=[node],
            shape=shape_of(output),
        )
        edit.replace_value(output, new)
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, f"{groups} groups written as one"))
    return PassRecord("ungroup_conv_transpose", tuple(changed), tuple(declined))


def is_grouped(node: ir.Node) -> bool:
    """Whether a ConvTranspose has groups of more than one input or output channel."""
    if not is_op(node, "ConvTranspose"):
        return False
    groups, shape = int(attribute(node, "group", 1)), shape_of(node.inputs[1])
    return groups > 1 and shape is not None and (shape[0] != groups or shape[1] != 1)
