"""Pooling: maximum, average and global, with odd kernels, strides and paddings."""

from __future__ import annotations

from typing import Any

from dovetail.sweep.blocks.activations import silu, usual_activation
from dovetail.sweep.blocks.convolutions import conv, pointwise, width
from dovetail.sweep.blocks.kind import on_images
from dovetail.sweep.graph_builder import GraphBuilder, Tensor

_PADS = ((0, 0, 0, 0), (0, 0, 1, 1), (1, 1, 0, 0), (0, 1, 1, 0), (1, 1, 1, 1))


def _pooled(
    b: GraphBuilder, x: Tensor, op_type: str, kernel: int, stride: int, pads: tuple[int, ...], **attributes: Any
) -> Tensor:
    out = [(x.shape[axis + 2] + pads[axis] + pads[axis + 2] - kernel) // stride + 1 for axis in (0, 1)]
    shape = (*x.shape[:2], *out)
    return b.op(op_type, x, shape=shape, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=list(pads), **attributes)


def _before(b: GraphBuilder, x: Tensor) -> Tensor:
    return usual_activation(b, conv(b, x, width(b))) if b.draw.chance(0.6) else x


@on_images
def max_pool(b: GraphBuilder, x: Tensor) -> Tensor:
    kernel, stride = b.draw.choice(((2, 2), (3, 2), (3, 1), (5, 1), (3, 3)))
    pads = b.draw.choice(_PADS if kernel > 2 else _PADS[:4])
    return _pooled(b, _before(b, x), "MaxPool", kernel, stride, pads)


@on_images
def average_pool(b: GraphBuilder, x: Tensor) -> Tensor:
    kernel, stride = b.draw.choice(((2, 2), (3, 2), (3, 1), (3, 3)))
    pads = b.draw.choice(_PADS if kernel > 2 else _PADS[:4])
    return _pooled(b, _before(b, x), "AveragePool", kernel, stride, pads, count_include_pad=int(b.draw.chance(0.5)))


@on_images
def global_pool(b: GraphBuilder, x: Tensor) -> Tensor:
    x = _before(b, x)
    op_type = b.draw.choice(("GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax"))
    if op_type.startswith("Reduce"):
        return pointwise(b, b.reduce(op_type, x, (2, 3)), width(b))
    return pointwise(b, b.op(op_type, x, shape=(*x.shape[:2], 1, 1)), width(b))


@on_images
def pyramid_pooling(b: GraphBuilder, x: Tensor) -> Tensor:
    """SPPF of YOLO: three MaxPools in a row, all of them concatenated."""
    parts = [silu(b, pointwise(b, x, b.draw.choice((4, 6, 8))))]
    for _ in range(3):
        parts.append(_pooled(b, parts[-1], "MaxPool", 5, 1, (2, 2, 2, 2)))
    return usual_activation(b, pointwise(b, b.concat(parts, 1), width(b)))


@on_images
def pooled_residual(b: GraphBuilder, x: Tensor) -> Tensor:
    """PoolFormer's mixer: an average of the neighbours, less the tensor itself."""
    y = _pooled(b, x, "AveragePool", 3, 1, (1, 1, 1, 1), count_include_pad=0)
    return b.op("Add", x, b.op("Sub", y, x))


@on_images
def strip_pooling(b: GraphBuilder, x: Tensor) -> Tensor:
    """Means over rows and over columns, as in coordinate attention, each expanded by a product."""
    rows, columns = b.reduce("ReduceMean", x, (3,)), b.reduce("ReduceMean", x, (2,))
    gate = b.op("Sigmoid", pointwise(b, rows, x.channels))
    return b.op("Mul", b.op("Mul", x, gate), b.op("Sigmoid", pointwise(b, columns, x.channels)))
