"""Attention inside windows of an image-like tensor, and patches as sequences."""

from __future__ import annotations

import numpy as np

from dovetail.sweep.blocks.attention import attention
from dovetail.sweep.blocks.convolutions import ConvShape, conv, pointwise
from dovetail.sweep.blocks.kind import on_images
from dovetail.sweep.blocks.movement import slice_of
from dovetail.sweep.blocks.norms import channels_first, channels_last, layer_norm
from dovetail.sweep.graph_builder import GraphBuilder, Tensor, scalar


def _padded(b: GraphBuilder, x: Tensor, size: int) -> Tensor:
    """[N, H, W, C] with height and width filled up to multiples of the window."""
    batch, height, width, channels = x.shape
    bottom, right = -height % size, -width % size
    if not bottom and not right:
        return x
    pads = np.array([0, 0, 0, 0, 0, bottom, right, 0])
    return b.op("Pad", x, pads, scalar(0), shape=(batch, height + bottom, width + right, channels), mode="constant")


@on_images
def window_attention(b: GraphBuilder, x: Tensor) -> Tensor:
    """Swin: windows [N * windows, T, C], attention with a norm before it, and back."""
    size = b.draw.choice((3, 4, 5))
    x = pointwise(b, x, b.draw.choice((16, 20, 24)))
    whole = channels_last(b, x)
    padded = _padded(b, layer_norm(b, whole) if b.draw.chance(0.6) else whole, size)
    batch, height, width, channels = padded.shape
    rows, columns = height // size, width // size
    y = b.transpose(b.reshape(padded, batch, rows, size, columns, size, channels), 0, 1, 3, 2, 4, 5)
    y = attention(b, b.reshape(y, batch * rows * columns, size * size, channels), cosine=b.draw.chance(0.3))
    y = b.transpose(b.reshape(y, batch, rows, columns, size, size, channels), 0, 1, 3, 2, 4, 5)
    y = b.reshape(y, batch, height, width, channels)
    if height != whole.shape[1]:
        y = slice_of(b, y, 1, 0, whole.shape[1])
    if width != whole.shape[2]:
        y = slice_of(b, y, 2, 0, whole.shape[2])
    return channels_first(b, b.op("Add", whole, y))


@on_images
def shifted_windows(b: GraphBuilder, x: Tensor) -> Tensor:
    """The cyclic shift of Swin: two slices of an axis, swapped."""
    for axis in (2, 3):
        size = x.shape[axis]
        shift = b.draw.choice((1, 2))
        x = b.concat([slice_of(b, x, axis, shift, size), slice_of(b, x, axis, 0, shift)], axis)
    return conv(b, x, x.channels, ConvShape((1, 1)))


@on_images
def global_attention(b: GraphBuilder, x: Tensor) -> Tensor:
    """Every place is a token."""
    x = pointwise(b, x, b.draw.choice((16, 20, 24)))
    batch, channels, height, width = x.shape
    tokens = b.transpose(b.reshape(x, batch, channels, height * width), 0, 2, 1)
    y = b.op("Add", tokens, attention(b, tokens))
    return b.reshape(b.transpose(y, 0, 2, 1), batch, channels, height, width)


@on_images
def patch_attention(b: GraphBuilder, x: Tensor) -> Tensor:
    """MobileViT: the tokens at the same place of every 2x2 patch attend to each other."""
    channels, rows, columns = 16, x.shape[2] // 2, x.shape[3] // 2
    x = slice_of(b, slice_of(b, x, 2, 0, 2 * rows), 3, 0, 2 * columns)
    y = pointwise(b, x, channels)
    batch = x.shape[0]
    y = b.transpose(b.reshape(y, batch * channels * rows, 2, columns, 2), 0, 2, 1, 3)
    y = b.transpose(b.reshape(y, batch, channels, rows * columns, 4), 0, 3, 2, 1)
    y = attention(b, b.reshape(y, batch * 4, rows * columns, channels))
    y = b.transpose(b.reshape(y, batch, 4, rows * columns, channels), 0, 3, 2, 1)
    y = b.transpose(b.reshape(y, batch * channels * rows, columns, 2, 2), 0, 2, 1, 3)
    return pointwise(b, b.reshape(y, batch, channels, 2 * rows, 2 * columns), b.draw.choice((12, 20)))
