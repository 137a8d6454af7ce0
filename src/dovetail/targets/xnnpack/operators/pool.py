"""Mappings of pooling.

XNNPACK (executorch 1.5.1) pools over two axes, with the same padding on both sides of an axis; an average does not
count the padding. Other poolings pad their input first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dovetail.encoding import Array
from dovetail.model.evaluate import EvaluationError, evaluate
from dovetail.targets.xnnpack.operators.padding import as_torch, paddings, zero
from dovetail.targets.xnnpack.operators.reduce import max_of_rows, mean_of_rows
from dovetail.targets.xnnpack.operators.registry import Call, Function, Tensor, operator, torch


@dataclass(frozen=True, slots=True)
class _Window:
    """The attributes of a pooling over two axes, with the padding before and after each of them."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    after: list[int]

    @property
    def is_even(self) -> bool:
        return self.before == self.after


@operator("MaxPool", "AveragePool")
def pool(call: Call) -> Function:
    if call.node.op_type == "MaxPool" and sum(bool(value.name) for value in call.node.outputs) > 1:
        raise call.unsupported("the output Indices is not supported")
    if len(call.shape()) not in (3, 4):
        raise call.unsupported("only pooling over one or two axes is supported; pool the axes one after the other")
    window = _window(call)
    pooling = _max(call, window) if call.node.op_type == "MaxPool" else _average(call, window)
    if len(call.shape()) == 4:
        return pooling
    n, c, size = call.shape()
    return lambda x: pooling(x.reshape(n, c, 1, size)).reshape(call.output_shape())


def native_pool(call: Call) -> Function:
    """The torch function that a model's author uses; with ceil_mode it is not delegated."""
    window, ceil = _window(call), bool(call.attribute("ceil_mode", 0))
    if len(call.shape()) != 4 or not window.is_even or any(step != 1 for step in window.dilations):
        pooling: Function = pool(call)
        return pooling
    include_pad = bool(call.attribute("count_include_pad", 0)) if any(window.before) else False
    arguments = window.kernel, window.strides, window.before, ceil, include_pad
    return lambda x: torch.nn.functional.avg_pool2d(x, *arguments)


def _window(call: Call) -> _Window:
    kernel = list(call.attribute("kernel_shape", []))
    strides = list(call.attribute("strides", [1] * len(kernel)))
    dilations = list(call.attribute("dilations", [1] * len(kernel)))
    before, after = paddings(call, kernel, strides, dilations)
    line = [1] * (2 - len(kernel))  # one axis is pooled as an image with one row
    return _Window(line + kernel, line + strides, line + dilations, [0] * len(line) + before, [0] * len(line) + after)


def _max(call: Call, window: _Window) -> Function:
    ceil, arguments = bool(call.attribute("ceil_mode", 0)), (window.kernel, window.strides)
    if window.is_even:
        return lambda x: torch.nn.functional.max_pool2d(x, *arguments, window.before, window.dilations, ceil)
    around = as_torch(window.before, window.after)

    def pool_uneven(x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(x, around, value=-math.inf)
        return torch.nn.functional.max_pool2d(padded, *arguments, 0, window.dilations, ceil)

    return pool_uneven


def _average(call: Call, window: _Window) -> Function:
    """Average windows; where they reach over the edge, the average with the padding, corrected by a constant."""
    if any(step != 1 for step in window.dilations):
        raise call.unsupported("dilations are not supported; write it as a Conv with one group per channel")
    sizes, out = ([1, *shape[2:]][-2:] for shape in (call.shape(), call.output_shape()))
    axes = zip(out, window.strides, window.kernel, sizes, window.before, strict=True)
    after = [(count - 1) * step + width - size - pad for count, step, width, size, pad in axes]
    excludes_padding = not call.attribute("count_include_pad", 0)
    pooled = torch.nn.functional.avg_pool2d
    if not any(window.before) and max(after) <= 0:
        return lambda x: pooled(x, window.kernel, window.strides)
    if excludes_padding and window.is_even and all(end <= pad for end, pad in zip(after, window.after, strict=True)):
        return lambda x: pooled(x, window.kernel, window.strides, window.before, False, False)
    around, fill = as_torch(window.before, [max(end, 0) for end in after]), zero(call)

    def average(x: Tensor, value: float = fill) -> Any:
        return pooled(torch.nn.functional.pad(x, around, value=value), window.kernel, window.strides)

    # What ONNX Runtime computes for ones is the part of each window that it divides by.
    ones = average(torch.ones(1, 1, *sizes), 0.0)
    correction = torch.from_numpy(_of_ones(call).reshape(ones.shape)) / ones
    return lambda x: average(x) * correction


def _of_ones(call: Call) -> Array:
    """What ONNX Runtime computes for a channel of ones."""
    ones = np.ones((1, 1, *call.shape()[2:]), np.float32)
    inputs = {str(value.name): ones for value in call.node.inputs if value is not None}
    try:
        (result,) = evaluate(call.node, inputs, {"": call.opset()})
    except EvaluationError as error:
        raise call.unsupported(str(error)) from error
    return result


@operator("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> Function:
    shape, out = call.shape(), call.output_shape()
    is_average = call.node.op_type == "GlobalAveragePool"
    if 0 in shape or (is_average and len(shape) == 4):
        return native_global_pool(call)
    if len(shape) == 4 and math.prod(shape[2:]) > 1:
        return lambda x: torch.nn.functional.max_pool2d(x, shape[2:])
    rows = (1, math.prod(shape[:2]), 1, math.prod(shape[2:]))
    reduce = mean_of_rows if is_average else max_of_rows
    return lambda x: reduce(x.reshape(rows)).reshape(out)


def native_global_pool(call: Call) -> Function:
    """The torch function that a model's author uses; delegated only for the average of a rank-4 input."""
    dims, name = list(range(2, len(call.shape()))), "mean" if call.node.op_type == "GlobalAveragePool" else "amax"
    return lambda x: getattr(torch, name)(x, dims, True)
