"""Compute the mean of a padded image from the mean of the image: the padding only makes it a weighted one."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, is_op, reduced_axes, shape_of
from dovetail.model.origin import origin_of
from dovetail.model.padding import Padding, padding_of
from dovetail.pass_record import PassRecord, Site

_SPATIAL = (2, 3)


def is_spatial_mean(node: ir.Node) -> bool:
    """Whether a node is the mean over rows and columns of images, and over nothing else."""
    shape = shape_of(node.inputs[0]) if is_op(node, "GlobalAveragePool", "ReduceMean") else None
    if shape is None or len(shape) != 4:
        return False
    return is_op(node, "GlobalAveragePool") or reduced_axes(node) == _SPATIAL


def fold_pad_into_mean(model: ir.Model, applies: Callable[[ir.Node], bool] = lambda node: True) -> PassRecord:
    """Let every mean over rows and columns of a padded tensor read the tensor, and scale the result.

    mean(pad(x)) = share * mean(x) + (1 - share) * value, where share = elements of x / elements of pad(x). Other
    consumers of the Pad still read it. ``applies``: which Pads to fold.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Pad") or attribute(node, "mode", "constant") != "constant" or not applies(node):
            continue
        where, padding = origin_of(node.outputs[0]).name, padding_of(node)
        for consumer in [user for user, _ in node.outputs[0].uses() if is_spatial_mean(user)]:
            reason = _obstacle(node, padding)
            if reason or padding is None:
                declined.append(Site(where, f"{consumer.op_type} {consumer.name!r}: {reason}"))
                continue
            _fold(node, padding, consumer)
            changed.append(Site(where, f"Pad folded into {consumer.op_type} {consumer.name!r}"))
        edit.remove_dead(model.graph, [node])
    return PassRecord("fold_pad_into_mean", tuple(changed), tuple(declined))


def _obstacle(pad: ir.Node, padding: Padding | None) -> str:
    shape = shape_of(pad.inputs[0])
    if padding is None or shape is None or 0 in shape:
        return "its shape, pads or value are unknown"
    if padding.amounts[:, :2].any():
        return "it pads the batch or the channels"
    if not np.isfinite(padding.value) or (padding.amounts < 0).any():
        return "its value is not finite, or it removes elements"
    return ""


def _fold(pad: ir.Node, padding: Padding, mean: ir.Node) -> None:
    output, data = mean.outputs[0], pad.inputs[0]
    inner, outer = ((shape_of(value) or ())[2:] for value in (data, pad.outputs[0]))
    share = math.prod(inner) / math.prod(outer)
    shape = shape_of(output)
    dtype = np.float32 if output.dtype is None else output.dtype.numpy()

    def with_constant(op_type: str, value: ir.Value, number: float) -> ir.Value:
        constant = edit.add_initializer(
            edit.graph_of(mean), np.array(number, dtype), name=f"{output.name}/{op_type}_constant", source=output
        )
        return edit.insert(mean, op_type, [value, constant], source=output, replaces=[pad, mean], shape=shape)

    result = with_constant("Mul", edit.insert_copy(mean, mean, [data, *mean.inputs[1:]]), share)
    if padding.value:
        result = with_constant("Add", result, (1 - share) * padding.value)
    edit.replace_value(output, result)
    edit.remove_dead(edit.graph_of(mean), [mean])
