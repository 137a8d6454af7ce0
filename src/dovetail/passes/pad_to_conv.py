"""Write a constant Pad around an image as a convolution with an identity weight, which pads by itself.

It pads with zeros, so another value is subtracted before it and added as its bias.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.model.padding import Padding, padding_of
from dovetail.pass_record import PassRecord, Site

# The value is subtracted from the data and added again: above this, float32 loses bits of the data.
_LARGEST_VALUE = 16.0
_RANK_OF_IMAGES = 4


def pad_to_conv(model: ir.Model, applies: Callable[[ir.Node], bool] = lambda node: True) -> PassRecord:
    """Replace the Pads of images for which ``applies`` is true; 1 and 0 are exact in int8."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Pad") or attribute(node, "mode", "constant") != "constant" or not applies(node):
            continue
        output = node.outputs[0]
        where = origin_of(output).name
        padding = padding_of(node)
        reason = _obstacle(node, padding)
        if reason or padding is None:
            declined.append(Site(where, reason))
            continue
        edit.replace_value(output, _convolved(node, padding))
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, "Pad rewritten as Conv with an identity weight"))
    return PassRecord("pad_to_conv", tuple(changed), tuple(declined))


def _obstacle(node: ir.Node, padding: Padding | None) -> str:
    shape = shape_of(node.inputs[0])
    if padding is None or shape is None or 0 in shape or not edit.is_float(node.outputs[0]):
        return "it is not a float tensor, or its shape, pads or value are unknown"
    if len(shape) != _RANK_OF_IMAGES or padding.amounts[:, 0].any():
        return "it does not have rank 4, or the batch is padded"
    if not np.isfinite(padding.value) or (padding.amounts < 0).any():
        return "its value is not finite, or it removes elements"
    if abs(padding.value) > _LARGEST_VALUE:
        return f"its value, {padding.value:g}, is so large that subtracting it would round the data"
    return ""


def _convolved(node: ir.Node, padding: Padding) -> ir.Value:
    output, data = node.outputs[0], node.inputs[0]
    shape, channels = shape_of(data) or (), (shape_of(output) or ())[1]
    before, after = padding.amounts[:, 1].tolist()
    dtype = np.float32 if output.dtype is None else output.dtype.numpy()

    def constant(array: Array, name: str) -> ir.Value:
        return edit.add_initializer(edit.graph_of(node), array, name=f"{output.name}/{name}", source=output)

    identity = np.pad(np.eye(shape[1], dtype=dtype), ((before, after), (0, 0)))[:, :, None, None]
    inputs = [data, constant(identity, "identity")]
    if padding.value:
        value = np.array(padding.value, dtype)
        inputs[0] = edit.insert(
            node, "Sub", [data, constant(value, "value")], source=output, replaces=[node], shape=shape
        )
        inputs.append(constant(np.full(channels, value), "bias"))
    return edit.insert(
        node,
        "Conv",
        inputs,
        attributes={"pads": padding.amounts[:, 2:].reshape(-1).tolist(), "kernel_shape": [1, 1]},
        source=output,
        replaces=[node],
        shape=shape_of(output),
    )
