"""Convolutions: kernels, strides, dilations, groups, paddings, transposed ones, and channels that are nearly dead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.sweep.blocks.activations import any_activation, usual_activation
from dovetail.sweep.blocks.kind import on_images
from dovetail.sweep.graph_builder import GraphBuilder, Tensor


@dataclass(frozen=True, slots=True)
class ConvShape:
    """How a convolution moves over its input; ``pads`` is top, left, bottom, right, None for the same size."""

    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    pads: tuple[int, int, int, int] | None = None


def conv(
    b: GraphBuilder,
    x: Tensor,
    channels: int,
    shape: ConvShape | None = None,
    *,
    bias: bool = True,
    dead: int = 0,
) -> Tensor:
    """A convolution with weights that keep the size of activations; ``dead``: so many channels have tiny weights."""
    how = shape or ConvShape()
    batch, inputs, height, width = x.shape
    reach = [how.dilation * (size - 1) for size in how.kernel]
    pads = how.pads or (reach[0] // 2, reach[1] // 2, reach[0] - reach[0] // 2, reach[1] - reach[1] // 2)
    fan_in = inputs // how.groups * how.kernel[0] * how.kernel[1]
    weights = b.draw.normal(channels, inputs // how.groups, *how.kernel, std=(2 / fan_in) ** 0.5)
    offsets = b.draw.normal(channels, std=0.3)
    for channel in b.draw.sample(range(channels), dead):
        size = np.float32(b.draw.choice((1e-3, 1e-5, 1e-6, 1e-7, 0.0)))
        weights[channel] *= size
        offsets[channel] *= size
    out = [
        (size + pads[axis] + pads[axis + 2] - reach[axis] - 1) // how.stride + 1
        for axis, size in enumerate((height, width))
    ]
    return b.op(
        "Conv",
        x,
        weights,
        *((offsets,) if bias else ()),
        shape=(batch, channels, *out),
        kernel_shape=list(how.kernel),
        strides=[how.stride] * 2,
        dilations=[how.dilation] * 2,
        group=how.groups,
        pads=list(pads),
    )


def pointwise(b: GraphBuilder, x: Tensor, channels: int, *, bias: bool = True) -> Tensor:
    """A 1x1 convolution."""
    return conv(b, x, channels, ConvShape((1, 1)), bias=bias)


def width(b: GraphBuilder) -> int:
    """A number of channels, most of them no power of two."""
    return b.draw.choice((3, 5, 8, 10, 12, 16, 17, 20, 24, 31, 32, 36, 40, 48))


def stride_for(b: GraphBuilder, x: Tensor) -> int:
    """1 or 2, but 1 for a small tensor."""
    return b.draw.choice((1, 2)) if min(x.shape[2:]) >= 6 else 1


@on_images
def conv_activation(b: GraphBuilder, x: Tensor) -> Tensor:
    kernel = b.draw.choice(((1, 1), (3, 3), (3, 3), (5, 5), (7, 7), (1, 3), (3, 1), (1, 7), (2, 2)))
    shape = ConvShape(kernel, stride_for(b, x))
    return any_activation(b, conv(b, x, width(b), shape, bias=b.draw.chance(0.7)))


@on_images
def strided_conv(b: GraphBuilder, x: Tensor) -> Tensor:
    if min(x.shape[2:]) < 8:
        return conv_activation(b, x)
    stride = b.draw.choice((2, 2, 2, 3, 4))
    kernel = b.draw.choice((1, 2, 3, 3, 5, 7))
    pads = b.draw.choice((None, (0, 0, 1, 1), (1, 1, 0, 0), (0, 0, 0, 0)))
    return any_activation(b, conv(b, x, width(b), ConvShape((kernel, kernel), stride, pads=pads)))


@on_images
def dilated_conv(b: GraphBuilder, x: Tensor) -> Tensor:
    return any_activation(b, conv(b, x, width(b), ConvShape((3, 3), dilation=b.draw.choice((2, 3, 4)))))


@on_images
def depthwise_conv(b: GraphBuilder, x: Tensor) -> Tensor:
    kernel = b.draw.choice((3, 3, 5, 7))
    shape = ConvShape((kernel, kernel), stride_for(b, x), groups=x.channels)
    return any_activation(b, conv(b, x, x.channels * b.draw.choice((1, 1, 1, 2)), shape))


@on_images
def grouped_conv(b: GraphBuilder, x: Tensor) -> Tensor:
    groups = b.draw.choice((2, 3, 4))
    x = pointwise(b, x, groups * b.draw.choice((3, 4, 6, 8)))
    return any_activation(b, conv(b, x, groups * b.draw.choice((2, 5, 8)), ConvShape(groups=groups)))


@on_images
def valid_conv(b: GraphBuilder, x: Tensor) -> Tensor:
    return any_activation(b, conv(b, x, width(b), ConvShape(pads=b.draw.choice(((0, 0, 0, 0), (2, 2, 2, 2))))))


@on_images
def conv_transpose(b: GraphBuilder, x: Tensor) -> Tensor:
    kernel, stride, pad, extra = b.draw.choice(((2, 2, 0, 0), (4, 2, 1, 0), (3, 2, 1, 1), (3, 1, 1, 0), (3, 3, 0, 0)))
    groups = x.channels if b.draw.chance(0.2) else 1
    channels = x.channels if groups > 1 else width(b)
    weights = b.draw.normal(x.channels, channels // groups, kernel, kernel, std=(2 / (x.channels // groups)) ** 0.5)
    out = [(size - 1) * stride - 2 * pad + kernel + extra for size in x.shape[2:]]
    y = b.op(
        "ConvTranspose",
        x,
        weights,
        b.draw.normal(channels, std=0.3),
        shape=(x.shape[0], channels, *out),
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=[pad] * 4,
        output_padding=[extra] * 2,
        group=groups,
    )
    return usual_activation(b, y)


@on_images
def dead_channels(b: GraphBuilder, x: Tensor) -> Tensor:
    shape = b.draw.choice((ConvShape((1, 1)), ConvShape(), ConvShape(groups=x.channels)))
    channels = x.channels if shape.groups > 1 else width(b)
    y = conv(b, x, channels, shape, dead=b.draw.between(1, max(1, channels // 3)))
    return usual_activation(b, y)


@on_images
def activation(b: GraphBuilder, x: Tensor) -> Tensor:
    return any_activation(b, x)
