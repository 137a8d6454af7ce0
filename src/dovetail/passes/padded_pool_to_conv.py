"""Write padded pooling without padding in the pooling operator: an average as a convolution, a maximum after a Pad."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

_RANK_OF_IMAGES = 4


def padded_pool_to_conv(model: ir.Model, applies: Callable[[ir.Node], bool] = lambda node: True) -> PassRecord:
    """Rewrite the padded AveragePools and MaxPools of images for which ``applies`` is true.

    An AveragePool becomes a depthwise Conv with equal weights. If it does not count its padding, a Mul with one factor
    per position follows. A MaxPool gets its padding from a Pad that repeats the border, which is in every window that
    has padding.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "AveragePool", "MaxPool") or not any(attribute(node, "pads", ())) or not applies(node):
            continue
        output = node.outputs[0]
        where, reason = origin_of(output).name, _obstacle(node)
        if reason:
            declined.append(Site(where, reason))
            continue
        is_average = is_op(node, "AveragePool")
        edit.replace_value(output, _convolved(node) if is_average else _padded(node))
        edit.remove_dead(model.graph, [node])
        form = "depthwise Conv" if is_average else "Pad and MaxPool"
        changed.append(Site(where, f"{node.op_type} with padding rewritten as {form}"))
    return PassRecord("padded_pool_to_conv", tuple(changed), tuple(declined))


def _obstacle(node: ir.Node) -> str:
    """Why it cannot be rewritten; empty if the result is the same."""
    shape = shape_of(node.inputs[0])
    if shape is None or len(shape) != _RANK_OF_IMAGES or 0 in shape or not edit.is_float(node.outputs[0]):
        return "it is not a float image of known size"
    if attribute(node, "ceil_mode", 0) or len(node.outputs) > 1 or not _has_explicit_pads(node):
        return "it has ceil_mode, auto_pad or a second output"
    if is_op(node, "MaxPool") and any(step > 1 for step in attribute(node, "dilations", ())):
        return "its windows are dilated, so the border is not in each of them"
    if is_op(node, "AveragePool") and not attribute(node, "count_include_pad", 0) and not _elements(node).all():
        return "a window has nothing but padding"
    return ""


def _has_explicit_pads(node: ir.Node) -> bool:
    return str(attribute(node, "auto_pad", "NOTSET")) == "NOTSET"


def _convolved(node: ir.Node) -> ir.Value:
    output, channels = node.outputs[0], (shape_of(node.inputs[0]) or ())[1]
    kernel = list(attribute(node, "kernel_shape", ()))
    kept = {name: node.attributes[name] for name in ("strides", "pads", "dilations") if name in node.attributes}
    weight = np.full((channels, 1, *kernel), 1 / np.prod(kernel), np.float32)
    value = edit.insert(
        node,
        "Conv",
        [node.inputs[0], _constant(node, weight, "weight")],
        attributes={**kept, "kernel_shape": kernel, "group": channels},
        source=output,
        replaces=[node],
        shape=shape_of(output),
    )
    counts = np.ones(1) if attribute(node, "count_include_pad", 0) else _elements(node) / np.prod(kernel)
    if (counts == 1).all():
        return value
    factors = _constant(node, (1 / counts).astype(np.float32), "factors")
    return edit.insert(node, "Mul", [value, factors], source=output, replaces=[node], shape=shape_of(output))


def _elements(node: ir.Node) -> Array:
    """How many elements of the input each window of an AveragePool has, [1, 1, rows, columns]."""
    kernel, rank = attribute(node, "kernel_shape", ()), len(attribute(node, "kernel_shape", ()))
    strides, dilations = (attribute(node, name, [1] * rank) for name in ("strides", "dilations"))
    sizes, windows = (shape_of(value) or () for value in (node.inputs[0], node.outputs[0]))
    counts: Array = np.ones((1, 1))
    for axis in range(rank):
        starts = np.arange(windows[axis + 2]) * strides[axis] - attribute(node, "pads", ())[axis]
        positions = starts[:, None] + np.arange(kernel[axis]) * dilations[axis]
        inside = ((positions >= 0) & (positions < sizes[axis + 2])).sum(axis=1)
        counts = counts[..., None] * inside
    return counts


def _padded(node: ir.Node) -> ir.Value:
    output, shape = node.outputs[0], shape_of(node.inputs[0]) or ()
    pads = np.array(attribute(node, "pads", ()), np.int64).reshape(2, -1)
    amounts = np.concatenate([np.zeros((2, 2), np.int64), pads], axis=1)
    padded = edit.insert(
        node,
        "Pad",
        [node.inputs[0], _constant(node, amounts.reshape(-1), "pads")],
        attributes={"mode": "edge"},
        source=output,
        replaces=[node],
        shape=tuple(size + int(total) for size, total in zip(shape, amounts.sum(axis=0), strict=True)),
    )
    attributes = {name: attr for name, attr in node.attributes.items() if name != "pads"}
    return edit.insert(
        node, "MaxPool", [padded], attributes=attributes, source=output, replaces=[node], shape=shape_of(output)
    )


def _constant(node: ir.Node, array: Array, name: str) -> ir.Value:
    output = node.outputs[0]
    return edit.add_initializer(edit.graph_of(node), array, name=f"{output.name}/{name}", source=output)
