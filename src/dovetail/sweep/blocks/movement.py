"""Resize, Pad, Slice and the ways in which networks rearrange places and channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from dovetail.sweep.blocks.activations import usual_activation
from dovetail.sweep.blocks.convolutions import ConvShape, conv, pointwise, width
from dovetail.sweep.blocks.kind import on_images
from dovetail.sweep.graph_builder import GraphBuilder, Tensor, scalar

_Attributes = dict[str, Any]
_NEAREST: list[_Attributes] = [
    {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    for coordinates in ("asymmetric", "half_pixel")
    for rounding in ("floor", "round_prefer_floor")
]
_LINEAR: list[_Attributes] = [
    {"mode": "linear", "coordinate_transformation_mode": coordinates}
    for coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
]
_CUBIC: list[_Attributes] = [{"mode": "cubic", "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75}]


def _around(b: GraphBuilder, x: Tensor) -> Tensor:
    """The tensor itself, or the output of a convolution."""
    return usual_activation(b, conv(b, x, width(b))) if b.draw.chance(0.6) else x


def slice_of(b: GraphBuilder, x: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """A Slice over one axis, with a positive step."""
    size = -(-(stop - start) // step)
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    return b.op("Slice", x, *(np.array([number]) for number in (start, stop, axis, step)), shape=shape)


def _resized(b: GraphBuilder, x: Tensor, attributes: _Attributes) -> Tensor:
    """A Resize of height and width, by a factor or to a size."""
    if b.draw.chance(0.6):
        factor = b.draw.choice((2.0, 2.0, 2.0, 3.0, 1.5))
        out = tuple(int(size * factor) for size in x.shape[2:])
        scales = np.array([1, 1, factor, factor], np.float32)
        return b.op("Resize", x, None, scales, shape=(*x.shape[:2], *out), **attributes)
    out = tuple(b.draw.between(max(3, size // 2), 2 * size + 1) for size in x.shape[2:])
    return b.op("Resize", x, None, None, np.array((*x.shape[:2], *out)), shape=(*x.shape[:2], *out), **attributes)


@on_images
def resize_nearest(b: GraphBuilder, x: Tensor) -> Tensor:
    return _resized(b, _around(b, x), b.draw.choice(_NEAREST))


@on_images
def resize_interpolated(b: GraphBuilder, x: Tensor) -> Tensor:
    return _resized(b, _around(b, x), b.draw.choice((*_LINEAR, *_CUBIC)))


@on_images
def pad(b: GraphBuilder, x: Tensor) -> Tensor:
    x = _around(b, x)
    mode = b.draw.choice(("constant", "constant", "reflect", "edge"))
    top, left, bottom, right = (b.draw.between(0, 2) for _ in range(4))
    pads = np.array([0, 0, top, left, 0, 0, bottom, right])
    shape = (*x.shape[:2], x.shape[2] + top + bottom, x.shape[3] + left + right)
    value = (scalar(b.draw.choice((0.0, 0.0, 0.5, -1.0))),) if mode == "constant" and b.draw.chance(0.7) else ()
    y = b.op("Pad", x, pads, *value, shape=shape, mode=mode)
    return conv(b, y, width(b), ConvShape(pads=(0, 0, 0, 0))) if b.draw.chance(0.6) else y


@on_images
def crop(b: GraphBuilder, x: Tensor) -> Tensor:
    x = _around(b, x)
    for axis in b.draw.sample((1, 2, 3), b.draw.choice((1, 2))):
        start = b.draw.between(0, x.shape[axis] // 3)
        x = slice_of(b, x, axis, start, x.shape[axis] - b.draw.between(0, x.shape[axis] // 3))
    return pointwise(b, x, width(b)) if b.draw.chance(0.5) else x


@on_images
def focus(b: GraphBuilder, x: Tensor) -> Tensor:
    """Every second row and column, four times, concatenated, as in YOLOX and in Swin's patch merging."""
    height, columns = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    parts = []
    for left in (0, 1):
        for top in (0, 1):
            rows = slice_of(b, x, 2, top, height, 2)
            parts.append(slice_of(b, rows, 3, left, columns, 2))
    return usual_activation(b, conv(b, b.concat(parts, 1), width(b)))


@on_images
def pixel_shuffle(b: GraphBuilder, x: Tensor) -> Tensor:
    batch, _, height, columns = x.shape
    channels = b.draw.choice((2, 3, 5))
    y = conv(b, x, 4 * channels)
    shape = (batch, channels, 2 * height, 2 * columns)
    if b.draw.chance(0.5):
        return b.op("DepthToSpace", y, shape=shape, blocksize=2, mode=b.draw.choice(("CRD", "DCR")))
    y = b.transpose(b.reshape(y, batch, channels, 2, 2, height, columns), 0, 1, 4, 2, 5, 3)
    return b.reshape(y, *shape)


@on_images
def space_to_depth(b: GraphBuilder, x: Tensor) -> Tensor:
    height, columns = x.shape[2] // 2, x.shape[3] // 2
    x = slice_of(b, slice_of(b, x, 2, 0, 2 * height), 3, 0, 2 * columns)
    y = b.op("SpaceToDepth", x, shape=(x.shape[0], 4 * x.channels, height, columns), blocksize=2)
    return pointwise(b, y, width(b))


@on_images
def channel_shuffle(b: GraphBuilder, x: Tensor) -> Tensor:
    batch, _, height, columns = x.shape
    groups, each = b.draw.choice((2, 3)), b.draw.choice((3, 4, 8))
    y = usual_activation(b, conv(b, x, groups * each))
    y = b.transpose(b.reshape(y, batch, groups, each, height, columns), 0, 2, 1, 3, 4)
    y = b.reshape(y, batch, groups * each, height, columns)
    return conv(b, y, y.channels, ConvShape(groups=y.channels))


@on_images
def to_tokens(b: GraphBuilder, x: Tensor) -> Tensor:
    """Patches as tokens, with positions added."""
    size = b.draw.choice((1, 2)) if min(x.shape[2:]) >= 6 else 1
    y = conv(b, x, b.draw.choice((16, 20, 24, 36)), ConvShape((size, size), size, pads=(0, 0, 0, 0)))
    batch, channels, height, columns = y.shape
    tokens = b.transpose(b.reshape(y, batch, channels, height * columns), 0, 2, 1)
    return b.op("Add", tokens, b.draw.normal(1, height * columns, channels, std=0.3))


@on_images
def expanded(b: GraphBuilder, x: Tensor) -> Tensor:
    """A constant per channel and a row of places, expanded to the size of the tensor and concatenated with it."""
    batch, _, height, columns = x.shape
    shape = (batch, 1, height, columns)
    rows = b.op("Expand", b.draw.uniform(-1, 1, 1, 1, height, 1), np.array(shape), shape=shape)
    return usual_activation(b, conv(b, b.concat([x, rows], 1), width(b)))
