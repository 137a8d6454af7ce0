"""Write zeros at the ends of the last axis of tokens as a MatMul with an identity matrix that has columns of zeros."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.model.padding import Padding, padding_of
from dovetail.pass_record import PassRecord, Site

_RANK_OF_IMAGES = 4
# A matrix of 4096 x 4096 has 16 MB in int8.
_LARGEST_AXIS = 4096


def pad_to_matmul(model: ir.Model, applies: Callable[[ir.Node], bool] = lambda node: True) -> PassRecord:
    """Replace Pads that add unequally many elements at the two ends of the last axis; 1 and 0 are exact in int8.

    What they add to other axes is still added by a Pad. Images (rank 4) are left to ``pad_to_conv``.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Pad") or attribute(node, "mode", "constant") != "constant" or not applies(node):
            continue
        padding = padding_of(node)
        if padding is None or padding.amounts.shape[1] == _RANK_OF_IMAGES or not np.diff(padding.amounts[:, -1]).any():
            continue
        where = origin_of(node.outputs[0]).name
        if reason := _obstacle(node, padding):
            declined.append(Site(where, reason))
            continue
        edit.replace_value(node.outputs[0], _multiplied(node, padding))
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, "Pad of the last axis rewritten as MatMul with an identity matrix"))
    return PassRecord("pad_to_matmul", tuple(changed), tuple(declined))


def _obstacle(node: ir.Node, padding: Padding) -> str:
    shape = shape_of(node.inputs[0])
    if shape is None or len(shape) < 2 or 0 in shape or not edit.is_float(node.outputs[0]):
        return "it is not a float tensor of rank 2 or more, or its shape is unknown"
    if padding.value or (padding.amounts < 0).any():
        return "it does not pad with zeros, or removes elements"
    return (
        "" if shape[-1] <= _LARGEST_AXIS else f"its last axis has {shape[-1]} elements: the matrix would be too large"
    )


def _multiplied(node: ir.Node, padding: Padding) -> ir.Value:
    output, data = node.outputs[0], node.inputs[0]
    shape, padded = shape_of(data) or (), shape_of(output) or ()
    graph = edit.graph_of(node)
    dtype = np.float32 if output.dtype is None else output.dtype.numpy()
    others = padding.amounts.copy()
    others[:, -1] = 0
    if others.any():
        pads = edit.add_initializer(graph, others.reshape(-1), name=f"{output.name}/pads", source=output)
        data = edit.insert(node, "Pad", [data, pads], source=output, replaces=[node], shape=(*padded[:-1], shape[-1]))
    matrix = np.pad(np.eye(shape[-1], dtype=dtype), ((0, 0), padding.amounts[:, -1].tolist()))
    identity = edit.add_initializer(graph, matrix, name=f"{output.name}/identity", source=output)
    return edit.insert(node, "MatMul", [data, identity], source=output, replaces=[node], shape=padded)
