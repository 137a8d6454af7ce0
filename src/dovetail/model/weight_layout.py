"""The layers whose weight is multiplied by an activation: which input is which, and the layout of both."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.numerics.layouts import ConvLayout, Layout, LinearLayout


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """How the constant on one input of a node is multiplied by the activation on another one, ``source``."""

    layout: Layout
    source: int


def weight_layout(node: ir.Node, index: int) -> WeightLayout | None:
    """The layout of the weight on an input; None if that is not the weight of a layer that reads an activation.

    None also for a MatMul with a matrix per batch, and a convolution whose padding is not known.
    """
    source = 1 - index
    if index > 1 or not is_op(node, "Conv", "ConvTranspose", "Gemm", "MatMul"):
        return None
    shape = shape_of(node.inputs[index])
    if shape is None or 0 in shape or constant_of(node.inputs[source]) is not None:
        return None
    if node.op_type in ("Conv", "ConvTranspose"):
        layout: Layout | None = _conv(node, shape) if index == 1 else None
    elif len(shape) != 2 or len(shape_of(node.inputs[source]) or ()) < 2:
        layout = None
    else:
        layout = _linear(node, index)
    return None if layout is None else WeightLayout(layout, source)


def _linear(node: ir.Node, index: int) -> LinearLayout:
    """A constant on the left is [outputs, inputs], one on the right [inputs, outputs], unless Gemm transposes it."""
    transposed = [node.op_type == "Gemm" and bool(attribute(node, name, 0)) for name in ("transA", "transB")]
    is_right = index == 1
    return LinearLayout(
        inputs_first=is_right != transposed[index], inputs_before_last=is_right == transposed[1 - index]
    )


def _conv(node: ir.Node, shape: tuple[int, ...]) -> ConvLayout | None:
    kernel, sizes = shape[2:], (shape_of(node.inputs[0]) or ())[2:]
    outputs = (shape_of(node.outputs[0]) or ())[2:]
    if len(sizes) != len(kernel) or len(outputs) != len(kernel):
        return None
    ones = (1,) * len(kernel)
    strides, dilations = (tuple(attribute(node, name, ones)) for name in ("strides", "dilations"))
    extents = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    transposed = node.op_type == "ConvTranspose"
    axes = zip(extents, outputs, sizes, strides, strict=True)
    if transposed:
        total = [extent + out - (n - 1) * s - 1 for extent, out, n, s in axes]
    else:
        total = [max((out - 1) * s + extent + 1 - n, 0) for extent, out, n, s in axes]
    before = _before(node, extents, total, transposed=transposed)
    if before is None:
        return None
    after = tuple(whole - first for whole, first in zip(total, before, strict=True))
    groups = int(attribute(node, "group", 1))
    return ConvLayout(shape, strides, dilations, before, after, groups, transposed)


def _before(node: ir.Node, extents: list[int], total: list[int], *, transposed: bool) -> tuple[int, ...] | None:
    """The zeros before the first element of each axis; ``total``: before and after, from the sizes of the output."""
    automatic = str(attribute(node, "auto_pad", "NOTSET"))
    pads = tuple(attribute(node, "pads", (0,) * 2 * len(extents)))[: len(extents)]
    if automatic in ("NOTSET", "VALID"):
        if transposed and attribute(node, "output_shape", None) is not None:
            return None
        return tuple(extent - pad for extent, pad in zip(extents, pads, strict=True)) if transposed else pads
    if transposed:
        return None
    return tuple((amount + (automatic == "SAME_LOWER")) // 2 for amount in total)
