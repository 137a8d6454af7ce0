"""Normalizations, as one operator and as exporters decompose them."""

from __future__ import annotations

import numpy as np

from dovetail.encoding import Array
from dovetail.sweep.blocks.activations import gelu, usual_activation
from dovetail.sweep.blocks.convolutions import ConvShape, conv, pointwise, width
from dovetail.sweep.blocks.kind import on_images, on_tokens
from dovetail.sweep.blocks.linear import linear
from dovetail.sweep.graph_builder import GraphBuilder, Tensor, scalar

_EPSILON = 1e-5


def _gain(b: GraphBuilder, *shape: int) -> Array:
    return b.draw.uniform(0.4, 1.6, *shape)


def layer_norm(b: GraphBuilder, x: Tensor) -> Tensor:
    """LayerNormalization over the last axis, as one operator or decomposed."""
    size = x.shape[-1]
    gain, offset = _gain(b, size), b.draw.normal(size, std=0.3)
    if b.draw.chance(0.6):
        return b.op("LayerNormalization", x, gain, offset, shape=x.shape, axis=-1, epsilon=_EPSILON)
    last = (len(x.shape) - 1,)
    centered = b.op("Sub", x, b.reduce("ReduceMean", x, last))
    variance = b.reduce("ReduceMean", b.op("Pow", centered, scalar(2)), last)
    y = b.op("Div", centered, b.op("Sqrt", b.op("Add", variance, scalar(_EPSILON))))
    return b.op("Add", b.op("Mul", y, gain), offset)


def rms_norm(b: GraphBuilder, x: Tensor, axis: int) -> Tensor:
    """x / sqrt(mean(x^2)), with a gain."""
    squares = b.op("Mul", x, x) if b.draw.chance(0.5) else b.op("Pow", x, scalar(2))
    root = b.op("Sqrt", b.op("Add", b.reduce("ReduceMean", squares, (axis,)), scalar(1e-6)))
    y = b.op("Div", x, root) if b.draw.chance(0.5) else b.op("Mul", x, b.op("Reciprocal", root))
    return b.op("Mul", y, _gain(b, *(size if index == axis else 1 for index, size in enumerate(x.shape))))


def l2_norm(b: GraphBuilder, x: Tensor, axis: int) -> Tensor:
    """x / max(norm(x), epsilon), as torch exports ``normalize``."""
    if b.draw.chance(0.6):
        norm = b.reduce("ReduceL2", x, (axis,))
    else:
        norm = b.op("Sqrt", b.reduce("ReduceSum", b.op("Mul", x, x), (axis,)))
    lowest = b.op("Clip", norm, scalar(1e-12)) if b.draw.chance(0.6) else b.op("Max", norm, scalar(1e-12))
    return b.op("Div", x, lowest)


def channels_last(b: GraphBuilder, x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, H, W, C]."""
    return b.transpose(x, 0, 2, 3, 1)


def channels_first(b: GraphBuilder, x: Tensor) -> Tensor:
    """[N, H, W, C] -> [N, C, H, W]."""
    return b.transpose(x, 0, 3, 1, 2)


@on_images
def batch_norm(b: GraphBuilder, x: Tensor) -> Tensor:
    """After a convolution, or where it cannot be folded into one."""
    x = conv(b, x, width(b), bias=False) if b.draw.chance(0.5) else x
    size = x.channels
    statistics = (b.draw.normal(size, std=0.3), b.draw.normal(size, std=0.5), b.draw.uniform(0.3, 2.0, size))
    y = b.op("BatchNormalization", x, _gain(b, size), *statistics, shape=x.shape, epsilon=_EPSILON)
    return usual_activation(b, y)


@on_images
def instance_norm(b: GraphBuilder, x: Tensor) -> Tensor:
    x = conv(b, x, width(b))
    gain, offset = _gain(b, x.channels), b.draw.normal(x.channels, std=0.3)
    return usual_activation(b, b.op("InstanceNormalization", x, gain, offset, shape=x.shape, epsilon=_EPSILON))


@on_images
def group_norm(b: GraphBuilder, x: Tensor) -> Tensor:
    """As one operator, or as torch exports it: InstanceNormalization of the groups."""
    groups = b.draw.choice((1, 2, 4))
    x = conv(b, x, groups * b.draw.choice((4, 6, 9)))
    size = x.channels
    if b.draw.chance(0.5):
        gain, offset = _gain(b, size), b.draw.normal(size, std=0.3)
        y = b.op("GroupNormalization", x, gain, offset, shape=x.shape, num_groups=groups, epsilon=_EPSILON)
        return usual_activation(b, y)
    grouped = b.reshape(x, x.shape[0], groups, size // groups * x.shape[2] * x.shape[3])
    one, zero = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    y = b.op("InstanceNormalization", grouped, one, zero, shape=grouped.shape, epsilon=_EPSILON)
    y = b.op("Mul", b.reshape(y, *x.shape), _gain(b, size, 1, 1))
    return usual_activation(b, b.op("Add", y, b.draw.normal(size, 1, 1, std=0.3)))


@on_images
def layer_norm_2d(b: GraphBuilder, x: Tensor) -> Tensor:
    """Over the channels of an image-like tensor, channels last, as in ConvNeXt."""
    return channels_first(b, layer_norm(b, channels_last(b, conv(b, x, width(b)))))


@on_images
def channel_norm(b: GraphBuilder, x: Tensor) -> Tensor:
    """Over the channels without a Transpose, as in SAM's neck: RMS or L2."""
    x = conv(b, x, width(b))
    return pointwise(b, (rms_norm if b.draw.chance(0.5) else l2_norm)(b, x, 1), width(b))


@on_images
def convnext(b: GraphBuilder, x: Tensor) -> Tensor:
    y = layer_norm(b, channels_last(b, conv(b, x, x.channels, ConvShape((7, 7), groups=x.channels))))
    y = gelu(b, linear(b, y, 2 * x.channels))
    if b.draw.chance(0.4):  # global response normalization, of version 2
        norm = b.reduce("ReduceL2", y, (1, 2))
        share = b.op("Div", norm, b.op("Add", b.reduce("ReduceMean", norm, (3,)), scalar(1e-6)))
        y = b.op("Add", b.op("Mul", b.op("Mul", y, share), b.draw.normal(y.shape[-1], std=0.2)), y)
    return b.op("Add", x, channels_first(b, linear(b, y, x.channels)))


@on_tokens
def token_layer_norm(b: GraphBuilder, x: Tensor) -> Tensor:
    return layer_norm(b, x)


@on_tokens
def token_rms_norm(b: GraphBuilder, x: Tensor) -> Tensor:
    return rms_norm(b, x, 2)


@on_tokens
def token_l2_norm(b: GraphBuilder, x: Tensor) -> Tensor:
    return l2_norm(b, x, 2)
