"""Mappings of MatMul and Gemm, convolutions and sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dovetail.model.edit import constant_of
from dovetail.qdq.params import is_dequantize
from dovetail.targets.xnnpack.operators.layout import cut
from dovetail.targets.xnnpack.operators.padding import as_torch, halves, paddings
from dovetail.targets.xnnpack.operators.registry import Call, Function, Tensor, operator, torch
from dovetail.targets.xnnpack.operators.repeat import repeating


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


@operator("Conv")
def convolution(call: Call) -> Function:
    shape = _conv_shape(call)
    before, after = paddings(call, list(call.shape(1)[2:]), shape.strides, shape.dilations)
    uneven, none = as_torch(before, after), [0] * len(before)
    padding = before if before == after else none

    def convolve(x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
        source = x if before == after else torch.nn.functional.pad(x, uneven)
        return torch.convolution(
            source, weight, bias, shape.strides, padding, shape.dilations, False, none, shape.groups
        )

    return convolve


@operator("ConvTranspose")
def transposed_convolution(call: Call) -> Function:
    """A padding that is smaller at the end makes the output longer there, one that is larger cuts it off."""
    shape, sizes, out = _conv_shape(call), call.shape()[2:], call.output_shape()[2:]
    before = _transposed_paddings(call, shape)
    axes = zip(sizes, shape.strides, shape.dilations, call.shape(1)[2:], before, strict=True)
    made = [(size - 1) * step + (width - 1) * hole + 1 - 2 * pad for size, step, hole, width, pad in axes]
    extra = [max(wanted - size, 0) for wanted, size in zip(out, made, strict=True)]
    if any(amount >= step for amount, step in zip(extra, shape.strides, strict=True)):
        raise call.unsupported(f"torch cannot compute its output size {list(out)}; pad less, and add a Pad after it")
    cuts = [(axis + 2, wanted) for axis, (wanted, size) in enumerate(zip(out, made, strict=True)) if wanted < size]

    def convolve(x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
        arguments = shape.strides, before, shape.dilations, True, extra, shape.groups
        result = torch.convolution(x, weight, bias, *arguments)
        for axis, wanted in cuts:
            result = cut(result, axis, 0, wanted)
        return result

    return convolve


@dataclass(frozen=True, slots=True)
class _ConvShape:
    strides: list[int]
    dilations: list[int]
    groups: int


def _conv_shape(call: Call) -> _ConvShape:
    ones = [1] * (len(call.shape()) - 2)
    strides, dilations = (list(call.attribute(name, ones)) for name in ("strides", "dilations"))
    return _ConvShape(strides, dilations, int(call.attribute("group", 1)))


def _transposed_paddings(call: Call, shape: _ConvShape) -> list[int]:
    """The padding before each axis; with output_shape or auto_pad it follows from the size of the output."""
    auto_pad, kernel = str(call.attribute("auto_pad", "NOTSET")), list(call.shape(1)[2:])
    if call.attribute("output_shape", None) is None and not auto_pad.startswith("SAME"):
        return paddings(call, kernel, shape.strides, shape.dilations)[0]
    extra = list(call.attribute("output_padding", [0] * len(kernel)))
    axes = zip(call.shape()[2:], shape.strides, shape.dilations, kernel, extra, call.output_shape()[2:], strict=True)
    total = [(size - 1) * step + more + (width - 1) * hole + 1 - out for size, step, hole, width, more, out in axes]
    return halves([max(amount, 0) for amount in total], upper=auto_pad == "SAME_UPPER")[0]


@operator("GridSample")
def grid_sample(call: Call) -> Function:
    mode = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
    name, align = mode[str(call.attribute("mode", "linear"))], bool(call.attribute("align_corners", 0))
    padding = str(call.attribute("padding_mode", "zeros"))
    return lambda x, grid: torch.nn.functional.grid_sample(x, grid, name, padding, align)
