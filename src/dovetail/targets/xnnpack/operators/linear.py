"""Products, convolutions, pooling and sampling."""

from __future__ import annotations

import math
from functools import partial

from dovetail.model.edit import constant_of
from dovetail.qdq.params import is_dequantize
from dovetail.targets.xnnpack.operators.reduce import mean_of_rows
from dovetail.targets.xnnpack.operators.registry import Call, Function, Tensor, operator, torch
from dovetail.targets.xnnpack.operators.repeat import repeating

# How far a size times its scale may be from a whole number: scales are stored in 32 bits.
_WHOLE = 1e-3


@operator("Gemm")
def gemm(call: Call) -> Function:
    alpha, beta = float(call.attribute("alpha", 1.0)), float(call.attribute("beta", 1.0))
    if alpha == beta == 1.0 and is_constant(call, 1) and not call.attribute("transA", 0) and _is_row(call):
        return linear
    # A constant weight is stored as [outputs, inputs], whatever the file has.
    trans_a, trans_b = bool(call.attribute("transA", 0)), is_constant(call, 1) or bool(call.attribute("transB", 0))
    return partial(_general_gemm, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b)


def is_constant(call: Call, index: int) -> bool:
    """Whether an input is a constant, stored or not."""
    value = call.node.inputs[index]
    producer = None if value is None else value.producer()
    if producer is not None and is_dequantize(producer):
        value = producer.inputs[0]
    return constant_of(value) is not None


def _is_row(call: Call) -> bool:
    """Whether there is one number per output to add, or none."""
    return len(call.node.inputs) < 3 or call.node.inputs[2] is None or call.shape(2) == call.output()[1:]


def linear(x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
    """A linear layer, its weight stored as [outputs, inputs]: any other product with a constant falls out of int8."""
    return torch.nn.functional.linear(x, weight, bias)


def _general_gemm(
    a: Tensor, b: Tensor, c: Tensor = None, *, alpha: float, beta: float, trans_a: bool, trans_b: bool
) -> Tensor:
    product = alpha * torch.matmul(a.t() if trans_a else a, b.t() if trans_b else b)
    return product if c is None else product + beta * c


@operator("MatMul")
def matmul(call: Call) -> Function:
    one, other, out = call.shape(0), call.shape(1), call.output()
    if is_constant(call, 1) and len(other) == 2:
        return linear
    if min(len(one), len(other)) < 2:
        return lambda x, y: torch.matmul(x, y)
    batch = out[:-2]
    rank = len(out)

    first, second = (_stack(shape, batch, is_float=call.is_float()) for shape in (one, other))

    def multiply(x: Tensor, y: Tensor) -> Tensor:
        product = torch.bmm(first(x), second(y))
        return product if rank == 3 else product.reshape(out)

    return multiply


def _stack(shape: tuple[int, ...], batch: tuple[int, ...], *, is_float: bool) -> Function:
    """An operand as [batch, rows, columns]: a product of rank 4 would repeat its operands outside XNNPACK."""
    whole, stacked = (*batch, *shape[-2:]), (math.prod(batch), *shape[-2:])
    if math.prod(shape) == math.prod(whole):
        return lambda x: x if shape == stacked else x.reshape(stacked)
    padded = (1,) * (len(whole) - len(shape)) + shape
    times = [new // old for old, new in zip(padded, whole, strict=True)]
    found = repeating(padded, times) if is_float and 0 not in whole else None
    return lambda x: (x.expand(whole) if found is None else found(x)).reshape(stacked)


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
            raise call.refuse("padding that follows from output_shape has no form here")
        if before != after:
            raise call.refuse("padding that is not the same on both sides has no form here")
        extra = list(call.attribute("output_padding", [0] * spatial))
        return lambda x, w, b=None: torch.convolution(x, w, b, strides, before, dilations, True, extra, groups)
    uneven = [n for axis in reversed(range(spatial)) for n in (before[axis], after[axis])]
    padding = before if before == after else [0] * spatial

    def convolve(x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
        source = x if before == after else torch.nn.functional.pad(x, uneven)
        return torch.convolution(source, weight, bias, strides, padding, dilations, False, [0] * spatial, groups)

    return convolve


def _paddings(call: Call, kernel: list[int], strides: list[int], dilations: list[int]) -> tuple[list[int], list[int]]:
    """The padding in front and behind, per axis; where it is automatic, so that the stride alone decides the size."""
    spatial, how = len(kernel), str(call.attribute("auto_pad", "NOTSET"))
    if how in ("NOTSET", "VALID"):
        pads = list(call.attribute("pads", [0] * (2 * spatial)))
        return pads[:spatial], pads[spatial:]
    if call.node.op_type == "ConvTranspose":
        raise call.refuse("automatic padding has no form here")
    total = [
        max((math.ceil(size / stride) - 1) * stride + (window - 1) * dilation + 1 - size, 0)
        for size, window, stride, dilation in zip(call.shape()[2:], kernel, strides, dilations, strict=True)
    ]
    less, more = [amount // 2 for amount in total], [amount - amount // 2 for amount in total]
    return (less, more) if how == "SAME_UPPER" else (more, less)


@operator("MaxPool", "AveragePool")
def pool(call: Call) -> Function:
    return _pool(call, exactly=False)


def native_pool(call: Call) -> Function:
    """As a model's author writes it: sizes that are rounded up run outside XNNPACK."""
    return _pool(call, exactly=True)


def _pool(call: Call, *, exactly: bool) -> Function:
    """``exactly``: rounded up, even where that makes no difference."""
    kernel = list(call.attribute("kernel_shape", []))
    spatial = len(kernel)
    strides = list(call.attribute("strides", [1] * spatial))
    dilations = list(call.attribute("dilations", [1] * spatial))
    before, after = _paddings(call, kernel, strides, dilations)
    ceil = bool(call.attribute("ceil_mode", 0))
    if spatial != 2:
        raise call.refuse("only pooling over two axes has a form here")
    if call.node.op_type == "MaxPool":
        if len(call.node.outputs) > 1:
            raise call.refuse("the indices of the largest elements have no form here")
        if before == after:
            return lambda x: torch.nn.functional.max_pool2d(x, kernel, strides, before, dilations, ceil)
        around = [before[1], after[1], before[0], after[0]]

        def pool_uneven(x: Tensor) -> Tensor:
            padded = torch.nn.functional.pad(x, around, value=-math.inf)
            return torch.nn.functional.max_pool2d(padded, kernel, strides, 0, dilations, ceil)

        return pool_uneven
    if before != after:
        raise call.refuse("only an average that is padded alike on both sides has a form here")
    if any(step != 1 for step in dilations):
        raise call.refuse("an average that leaves elements out has no form here")
    sides = zip(call.shape()[2:], before, kernel, strides, strict=True)
    ceil = ceil and (exactly or any((size + 2 * pad - window) % step for size, pad, window, step in sides))
    counted = bool(call.attribute("count_include_pad", 0)) if any(before) else False
    return lambda x: torch.nn.functional.avg_pool2d(x, kernel, strides, before, ceil, counted)


@operator("GlobalAveragePool")
def global_average(call: Call) -> Function:
    shape, out = call.shape(), call.output()
    if len(shape) == 4 or 0 in shape:
        return native_global_average(call)
    rows = (1, math.prod(shape[:2]), 1, math.prod(shape[2:]))
    return lambda x: mean_of_rows(x.reshape(rows)).reshape(out)


def native_global_average(call: Call) -> Function:
    """As a model's author writes it; runs outside XNNPACK unless it is of a picture."""
    dims = list(range(2, len(call.shape())))
    return lambda x: torch.mean(x, dims, True)


@operator("GridSample")
def grid_sample(call: Call) -> Function:
    mode = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
    name, align = mode[str(call.attribute("mode", "linear"))], bool(call.attribute("align_corners", 0))
    padding = str(call.attribute("padding_mode", "zeros"))
    return lambda x, grid: torch.nn.functional.grid_sample(x, grid, name, padding, align)


@operator("Resize", numbers=(1, 2, 3))
def resize(call: Call) -> Function:
    shape, size = call.shape(), list(call.output())
    mode = str(call.attribute("mode", "nearest"))
    corner = str(call.attribute("coordinate_transformation_mode", "half_pixel"))
    if len(shape) != 4 or shape[:2] != tuple(size[:2]):
        raise call.refuse("only the last two axes of four can be resized here")
    _check_sampling(call, mode, corner, shape, size)
    if mode == "nearest":
        return _nearest(call, shape[2:], size[2:], corner)
    if corner not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        raise call.refuse(f"coordinates {corner!r} have no form here")
    name, align = {"linear": "bilinear", "cubic": "bicubic"}[mode], corner == "align_corners"
    if mode == "cubic" and float(call.attribute("cubic_coeff_a", -0.75)) != -0.75:
        raise call.refuse("torch has one cubic kernel, with a coefficient of -0.75")
    return lambda x, *_: torch.nn.functional.interpolate(x, size[2:], mode=name, align_corners=align)


def native_resize(call: Call) -> Function:
    """As a model's author writes it; nearest runs outside XNNPACK."""
    best: Function = resize(call)
    return _interpolate(list(call.output()[2:])) if call.attribute("mode", "nearest") == "nearest" else best


def _check_sampling(call: Call, mode: str, corner: str, shape: tuple[int, ...], size: list[int]) -> None:
    """Refuse what torch, which is told the size alone, would sample elsewhere or otherwise."""
    scales, axes = call.number(2), call.attribute("axes", None)
    along = range(len(shape)) if axes is None else [int(axis) % len(shape) for axis in axes]
    if scales is not None and scales.size and corner != "align_corners":
        for axis, scale in zip(along, scales.tolist(), strict=True):
            if abs(shape[axis] * scale - size[axis]) > _WHOLE:
                raise call.refuse(f"{shape[axis]} elements times {scale:g} are not a whole number")
    if str(call.attribute("keep_aspect_ratio_policy", "stretch")) != "stretch":
        raise call.refuse("keeping the aspect ratio has no form here")
    if call.attribute("antialias", 0) and any(after < before for before, after in zip(shape, size, strict=True)):
        raise call.refuse("what is made smaller and smoothed has no form here")
    if mode == "cubic" and call.attribute("exclude_outside", 0):
        raise call.refuse("leaving out what lies outside has no form here")
    if mode != "nearest" and corner == "pytorch_half_pixel" and 1 in size[2:]:
        raise call.refuse(f"a single row or column with coordinates {corner!r} has no form here")


def _nearest(call: Call, shape: tuple[int, ...], size: list[int], corner: str) -> Function:
    """Whole factors repeat elements, whatever the coordinates are; others only where torch counts as ONNX does."""
    whole = all(after % before == 0 for before, after in zip(shape, size, strict=True))
    rounding = str(call.attribute("nearest_mode", "round_prefer_floor"))
    floor = corner == "asymmetric" and rounding == "floor"
    centred = corner in ("half_pixel", "pytorch_half_pixel") and rounding.startswith("round")
    if not floor and not (whole and centred):
        raise call.refuse(f"nearest with coordinates {corner!r} has no form here")
    times = [after // before for before, after in zip(shape, size, strict=True)]
    found = repeating(call.shape(), (1, 1, 1, 1), (1, 1, *times)) if whole and call.is_float() else None
    return _interpolate(size) if found is None else lambda x, *_: found(x)


def _interpolate(size: list[int]) -> Function:
    return lambda x, *_: torch.nn.functional.interpolate(x, size, mode="nearest")
