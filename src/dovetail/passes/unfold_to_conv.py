"""Rewrite overlapping windows as convolutions whose kernels hold a single 1: unfold as Conv, Col2Im as ConvTranspose.

HTP does not support Col2Im, and rejects the rank 6 of the Gathers that exporters write for unfold; 1 is exact in int8.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.model.windows import Windows, folded_windows, grid_steps
from dovetail.pass_record import PassRecord, Site


def unfold_to_conv(model: ir.Model) -> PassRecord:
    """Rewrite two consecutive Gathers that extract windows of an image, and every Col2Im."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        where = origin_of(node.outputs[0]).name
        if is_op(node, "Gather") and (unfolded := _unfolded(node)) is not None:
            changed.append(Site(where, "Gathers of windows rewritten as Conv"))
            _unfold(node, *unfolded)
        elif is_op(node, "Col2Im"):
            windows = folded_windows(node)
            if windows is None:
                declined.append(Site(where, "its windows are unknown, or the image is not two-dimensional"))
                continue
            changed.append(Site(where, "Col2Im rewritten as ConvTranspose"))
            _fold(node, windows)
    return PassRecord("unfold_to_conv", tuple(changed), tuple(declined))


def _unfolded(last: ir.Node) -> tuple[ir.Value, Windows] | None:
    """The image and the windows that two Gathers extract, of its rows and then of its columns: [N,C,k,o,k,o]."""
    first = None if last.inputs[0] is None else last.inputs[0].producer()
    if first is None or not is_op(first, "Gather") or first.inputs[0] is None:
        return None
    shape = shape_of(first.inputs[0])
    indices = [constant_of(node.inputs[1]) for node in (first, last)]
    grids = [array for array in indices if array is not None and array.ndim == 2]
    axes = [int(attribute(node, "axis", 0)) % rank for node, rank in ((first, 4), (last, 5))]
    if shape is None or len(shape) != 4 or len(grids) != 2 or axes != [2, 4]:
        return None
    steps = [grid_steps(array) for array in grids]
    if steps[0] is None or steps[1] is None:
        return None
    windows = Windows(
        image=(shape[2], shape[3]),
        kernel=(grids[0].shape[0], grids[1].shape[0]),
        dilations=(max(steps[0][0], 1), max(steps[1][0], 1)),
        strides=(max(steps[0][1], 1), max(steps[1][1], 1)),
    )
    return (first.inputs[0], windows) if windows.positions == tuple(array.shape[1] for array in grids) else None


def _unfold(node: ir.Node, image: ir.Value, windows: Windows) -> None:
    batch, channels, *_ = shape_of(image) or (0, 0)
    kernel, positions = windows.kernel, windows.positions
    shape = (batch, channels * math.prod(kernel), *positions)
    value = _convolve(node, "Conv", image, windows, shape, group=channels)
    value = insert_step(node, value, Step("Reshape", (batch, channels, *kernel, *positions)), replaces=[node])
    value = insert_step(node, value, Step("Transpose", (0, 1, 2, 4, 3, 5)), replaces=[node])
    edit.replace_value(node.outputs[0], value)
    edit.remove_dead(edit.graph_of(node), [node])


def _fold(node: ir.Node, windows: Windows) -> None:
    source, shape = node.inputs[0], shape_of(node.inputs[0])
    if source is None or shape is None:
        raise TypeError(f"an input of node {node.name!r} is missing")
    batch, size = shape[:2]
    channels = size // math.prod(windows.kernel)
    value = insert_step(node, source, Step("Reshape", (batch, size, *windows.positions)), replaces=[node])
    covered = (
        (count - 1) * stride + dilation * (kernel - 1) + 1
        for count, stride, dilation, kernel in zip(
            windows.positions, windows.strides, windows.dilations, windows.kernel, strict=True
        )
    )
    padded = (sum(sizes) for sizes in zip(windows.image, windows.before, windows.after, strict=True))
    value = _convolve(
        node,
        "ConvTranspose",
        value,
        windows,
        (batch, channels, *windows.image),
        group=channels,
        pads=(*windows.before, *windows.after),
        output_padding=tuple(size - extent for size, extent in zip(padded, covered, strict=True)),
    )
    edit.replace_value(node.outputs[0], value)
    edit.remove_dead(edit.graph_of(node), [node])


def _convolve(
    node: ir.Node, op_type: str, value: ir.Value, windows: Windows, shape: tuple[int, ...], **attributes: Any
) -> ir.Value:
    """Insert a grouped convolution whose kernels, one per channel and position in a window, hold a single 1.

    A dilation is written as zeros in the kernels, because HTP does not support it in ConvTranspose.
    """
    output, kernel = node.outputs[0], windows.kernel
    positions = np.indices(kernel).reshape(2, -1)
    kernel_shape = [dilation * (size - 1) + 1 for dilation, size in zip(windows.dilations, kernel, strict=True)]
    kernels = np.zeros(
        (positions.shape[1], 1, *kernel_shape), np.float32 if value.dtype is None else value.dtype.numpy()
    )
    rows, columns = (dilation * position for dilation, position in zip(windows.dilations, positions, strict=True))
    kernels[np.arange(len(kernels)), 0, rows, columns] = 1
    weight = np.tile(kernels, (attributes["group"], 1, 1, 1))
    constant = edit.add_initializer(edit.graph_of(node), weight, name=f"{output.name}/places", source=output)
    attributes |= {"strides": windows.strides, "kernel_shape": kernel_shape}
    return edit.insert(
        node, op_type, [value, constant], attributes=attributes, source=output, replaces=[node], shape=shape
    )
