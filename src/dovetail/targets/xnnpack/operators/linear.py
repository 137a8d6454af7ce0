"""Mappings of MatMul and Gemm, convolutions, pooling, sampling and resizing."""

from __future__ import annotations

import math
from functools import partial

from dovetail.model.edit import constant_of
from dovetail.qdq.params import is_dequantize
from dovetail.targets.xnnpack.operators.reduce import mean_of_rows
from dovetail.targets.xnnpack.operators.registry import Call, Function, Tensor, operator, torch
from dovetail.targets.xnnpack.operators.repeat import repeating

# How far a size times its scale may be from an integer: scales are float32.
_TOLERANCE = 1e-3


@operator("Gemm")
def gemm(call: Call) -> Function:
    alpha, beta = float(call.attribute("alpha", 1.0)), float(call.attribute("beta", 1.0))
    if alpha == beta == 1.0 and is_constant(call, 1) and not call.attribute("transA", 0) and _bias_is_row(call):
        return linear
    # The module keeps a constant weight as [outputs, inputs], whatever the file has.
    trans_a, trans_b = bool(call.attribute("transA", 0)), is_constant(call, 1) or bool(call.attribute("transB", 0))
    return partial(_general_gemm, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b)


def is_constant(call: Call, index: int) -> bool:
    """Whether an input is a constant, quantized or float."""
    value = call.node.inputs[index]
    producer = None if value is None else value.producer()
    if producer is not None and is_dequantize(producer):
        value = producer.inputs[0]
    return constant_of(value) is not None


def _bias_is_row(call: Call) -> bool:
    """Whether the bias has one value per output, or is absent."""
    return len(call.node.inputs) < 3 or call.node.inputs[2] is None or call.shape(2) == call.output_shape()[1:]


def linear(x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
    """A linear layer with its weight as [outputs, inputs]: only in this layout does it run in int8."""
    return torch.nn.functional.linear(x, weight, bias)


def _general_gemm(
    a: Tensor, b: Tensor, c: Tensor = None, *, alpha: float, beta: float, trans_a: bool, trans_b: bool
) -> Tensor:
    product = alpha * torch.matmul(a.t() if trans_a else a, b.t() if trans_b else b)
    return product if c is None else product + beta * c


@operator("MatMul")
def matmul(call: Call) -> Function:
    left, right, out = call.shape(0), call.shape(1), call.output_shape()
    if is_constant(call, 1) and len(right) == 2:
        return linear
    if min(len(left), len(right)) < 2:
        return lambda x, y: torch.matmul(x, y)
    batch = out[:-2]
    rank = len(out)

    left_as_batch, right_as_batch = (_as_batch(shape, batch, is_float=call.is_float()) for shape in (left, right))

    def multiply(x: Tensor, y: Tensor) -> Tensor:
        product = torch.bmm(left_as_batch(x), right_as_batch(y))
        return product if rank == 3 else product.reshape(out)

    return multiply


def _as_batch(shape: tuple[int, ...], batch: tuple[int, ...], *, is_float: bool) -> Function:
    """Bring an operand to [batch, rows, columns]: a rank-4 matmul would expand its operands outside the delegate."""
    expanded, stacked = (*batch, *shape[-2:]), (math.prod(batch), *shape[-2:])
    if math.prod(shape) == math.prod(expanded):
        return lambda x: x if shape == stacked else x.reshape(stacked)
    padded = (1,) * (len(expanded) - len(shape)) + shape
    times = [new // old for old, new in zip(padded, expanded, strict=True)]
    repeat = repeating(padded, times) if is_float and 0 not in expanded else None
    return lambda x: (x.expand(expanded) if repeat is None else repeat(x)).reshape(stacked)


@operator("Einsum")
def einsum(call: Call) -> Function:
    equation = str(call.attribute("equation", ""))
    return lambda *tensors: torch.einsum(equation, *tensors)


@operator("Conv", "ConvTranspose")
def convolution(call: Call) -> Function:
    spatial = len(call.shape()) - 2
    strides = list(call.attribute("strides", [1] * spatial))
    dilations = list(call.attribute("dilations", [1] * spatial))
    groups = int(call.attribute("group", 1))
    before, after = _paddings(call, list(call.shape(1)[2:]), strides, dilations)
    if call.node.op_type == "ConvTranspose":
        if call.attribute("output_shape", None) is not None:
            raise call.unsupported("output_shape is not supported")
        if before != after:
            raise call.unsupported("different padding on the two sides of an axis is not supported")
        extra = list(call.attribute("output_padding", [0] * spatial))
        return lambda x, w, b=None: torch.convolution(x, w, b, strides, before, dilations, True, extra, groups)
    uneven = [amount for axis in reversed(range(spatial)) for amount in (before[axis], after[axis])]
    padding = before if before == after else [0] * spatial

    def convolve(x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
        source = x if before == after else torch.nn.functional.pad(x, uneven)
        return torch.convolution(source, weight, bias, strides, padding, dilations, False, [0] * spatial, groups)

    return convolve


def _paddings(call: Call, kernel: list[int], strides: list[int], dilations: list[int]) -> tuple[list[int], list[int]]:
    """The padding before and after each axis; auto_pad pads so that the output size depends on the stride only."""
    spatial, auto_pad = len(kernel), str(call.attribute("auto_pad", "NOTSET"))
    if auto_pad in ("NOTSET", "VALID"):
        pads = list(call.attribute("pads", [0] * (2 * spatial)))
        return pads[:spatial], pads[spatial:]
    if call.node.op_type == "ConvTranspose":
        raise call.unsupported(f"auto_pad {auto_pad} is not supported")
    total = [
        max((math.ceil(size / stride) - 1) * stride + (window - 1) * dilation + 1 - size, 0)
        for size, window, stride, dilation in zip(call.shape()[2:], kernel, strides, dilations, strict=True)
    ]
    smaller, larger = [amount // 2 for amount in total], [amount - amount // 2 for amount in total]
    return (smaller, larger) if auto_pad == "SAME_UPPER" else (larger, smaller)


@operator("MaxPool", "AveragePool")
def pool(call: Call) -> Function:
    return _pool(call, keep_ceil_mode=False)


def native_pool(call: Call) -> Function:
    """The torch function that a model's author uses; with ceil_mode it is not delegated."""
    return _pool(call, keep_ceil_mode=True)


def _pool(call: Call, *, keep_ceil_mode: bool) -> Function:
    """``keep_ceil_mode``: keep ceil_mode even where it makes no difference."""
    kernel = list(call.attribute("kernel_shape", []))
    spatial = len(kernel)
    strides = list(call.attribute("strides", [1] * spatial))
    dilations = list(call.attribute("dilations", [1] * spatial))
    before, after = _paddings(call, kernel, strides, dilations)
    ceil = bool(call.attribute("ceil_mode", 0))
    if spatial != 2:
        raise call.unsupported("only pooling over two axes is supported")
    if call.node.op_type == "MaxPool":
        if len(call.node.outputs) > 1:
            raise call.unsupported("the output Indices is not supported")
        if before == after:
            return lambda x: torch.nn.functional.max_pool2d(x, kernel, strides, before, dilations, ceil)
        around = [before[1], after[1], before[0], after[0]]

        def pool_uneven(x: Tensor) -> Tensor:
            padded = torch.nn.functional.pad(x, around, value=-math.inf)
            return torch.nn.functional.max_pool2d(padded, kernel, strides, 0, dilations, ceil)

        return pool_uneven
    if before != after:
        raise call.unsupported("different padding on the two sides of an axis is not supported")
    if any(step != 1 for step in dilations):
        raise call.unsupported("dilations are not supported")
    axes = zip(call.shape()[2:], before, kernel, strides, strict=True)
    ceil = ceil and (keep_ceil_mode or any((size + 2 * pad - window) % step for size, pad, window, step in axes))
    include_pad = bool(call.attribute("count_include_pad", 0)) if any(before) else False
    return lambda x: torch.nn.functional.avg_pool2d(x, kernel, strides, before, ceil, include_pad)


@operator("GlobalAveragePool")
def global_average(call: Call) -> Function:
    shape, out = call.shape(), call.output_shape()
    if len(shape) == 4 or 0 in shape:
        return native_global_average(call)
    rows = (1, math.prod(shape[:2]), 1, math.prod(shape[2:]))
    return lambda x: mean_of_rows(x.reshape(rows)).reshape(out)


def native_global_average(call: Call) -> Function:
    """The torch function that a model's author uses; delegated only for a rank-4 input."""
    dims = list(range(2, len(call.shape())))
    return lambda x: torch.mean(x, dims, True)


@operator("GridSample")
def grid_sample(call: Call) -> Function:
    mode = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
    name, align = mode[str(call.attribute("mode", "linear"))], bool(call.attribute("align_corners", 0))
    padding = str(call.attribute("padding_mode", "zeros"))
    return lambda x, grid: torch.nn.functional.grid_sample(x, grid, name, padding, align)


@operator("Resize", constants=(1, 2, 3))
def resize(call: Call) -> Function:
    shape, size = call.shape(), list(call.output_shape())
    mode = str(call.attribute("mode", "nearest"))
    corner = str(call.attribute("coordinate_transformation_mode", "half_pixel"))
    if len(shape) != 4 or shape[:2] != tuple(size[:2]):
        raise call.unsupported("only resizing of the last two axes of four is supported")
    _check_sampling(call, mode, corner, shape, size)
    if mode == "nearest":
        return _nearest(call, shape[2:], size[2:], corner)
    if corner not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        raise call.unsupported(f"coordinate_transformation_mode {corner!r} is not supported")
    name, align = {"linear": "bilinear", "cubic": "bicubic"}[mode], corner == "align_corners"
    if mode == "cubic" and float(call.attribute("cubic_coeff_a", -0.75)) != -0.75:
        raise call.unsupported("only cubic_coeff_a -0.75 is supported, the one that torch has")
    return lambda x, *_: torch.nn.functional.interpolate(x, size[2:], mode=name, align_corners=align)


def native_resize(call: Call) -> Function:
    """The torch function that a model's author uses; nearest is not delegated."""
    function: Function = resize(call)
    return _interpolate(list(call.output_shape()[2:])) if call.attribute("mode", "nearest") == "nearest" else function


def _check_sampling(call: Call, mode: str, corner: str, shape: tuple[int, ...], size: list[int]) -> None:
    """Refuse a Resize that torch, which gets only the size, would sample differently."""
    scales, axes = call.constant(2), call.attribute("axes", None)
    dims = range(len(shape)) if axes is None else [int(axis) % len(shape) for axis in axes]
    if scales is not None and scales.size and corner != "align_corners":
        for axis, scale in zip(dims, scales.tolist(), strict=True):
            if abs(shape[axis] * scale - size[axis]) > _TOLERANCE:
                raise call.unsupported(f"size {shape[axis]} times scale {scale:g} is not an integer")
    if str(call.attribute("keep_aspect_ratio_policy", "stretch")) != "stretch":
        raise call.unsupported("keep_aspect_ratio_policy is not supported")
    if call.attribute("antialias", 0) and any(after < before for before, after in zip(shape, size, strict=True)):
        raise call.unsupported("downsampling with antialias is not supported")
    if mode == "cubic" and call.attribute("exclude_outside", 0):
        raise call.unsupported("exclude_outside is not supported")
    if mode != "nearest" and corner == "pytorch_half_pixel" and 1 in size[2:]:
        raise call.unsupported(f"an output of size 1 with coordinate_transformation_mode {corner!r} is not supported")


def _nearest(call: Call, shape: tuple[int, ...], size: list[int], corner: str) -> Function:
    """Integer factors repeat elements; other factors are supported only where torch samples as ONNX does."""
    integer = all(after % before == 0 for before, after in zip(shape, size, strict=True))
    rounding = str(call.attribute("nearest_mode", "round_prefer_floor"))
    floor = corner == "asymmetric" and rounding == "floor"
    centered = corner in ("half_pixel", "pytorch_half_pixel") and rounding.startswith("round")
    if not floor and not (integer and centered):
        raise call.unsupported(f"nearest with coordinate_transformation_mode {corner!r} is not supported")
    times = [after // before for before, after in zip(shape, size, strict=True)]
    repeat = repeating(call.shape(), (1, 1, 1, 1), (1, 1, *times)) if integer and call.is_float() else None
    return _interpolate(size) if repeat is None else lambda x, *_: repeat(x)


def _interpolate(size: list[int]) -> Function:
    return lambda x, *_: torch.nn.functional.interpolate(x, size, mode="nearest")
