"""Write a Resize as MatMuls with constant weights: any interpolation is a sum of elements along each axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import is_op, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.model.resize import weights_of
from dovetail.pass_record import PassRecord, Site


def resize_to_matmul(model: ir.Model, applies: Callable[[ir.Node], bool] = lambda node: True) -> PassRecord:
    """Rewrite the Resizes of images for which ``applies`` is true: one MatMul for the rows and one for the columns."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Resize") or not applies(node):
            continue
        output, value = node.outputs[0], node.inputs[0]
        where, weights = origin_of(output).name, weights_of(node)
        if weights is None or value is None:
            declined.append(Site(where, "it is not an image of known size, or its interpolation is not known"))
            continue
        for axis, matrix in weights.items():
            swapped = Step("Transpose", (0, 1, 3, 2)) if axis == 2 else None
            value = value if swapped is None else insert_step(node, value, swapped, replaces=[node])
            weight = np.ascontiguousarray(matrix.T, np.float32)
            constant = edit.add_initializer(model.graph, weight, name=f"{output.name}/weights", source=output)
            shape = (*(shape_of(value) or ())[:-1], len(matrix))
            value = edit.insert(node, "MatMul", [value, constant], source=output, replaces=[node], shape=shape)
            value = value if swapped is None else insert_step(node, value, swapped, replaces=[node])
        edit.replace_value(output, value)
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, "Resize rewritten as MatMuls along rows and columns"))
    return PassRecord("resize_to_matmul", tuple(changed), tuple(declined))
