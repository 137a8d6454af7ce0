"""Blocks of convolutional networks: residuals, squeeze-excite, CSP splits, feature pyramids, detection heads."""

from __future__ import annotations

import numpy as np

from dovetail.sweep.blocks.activations import (
    any_activation,
    hard_sigmoid,
    relu,
    sigmoid,
    silu,
    softmax,
    usual_activation,
)
from dovetail.sweep.blocks.convolutions import ConvShape, conv, pointwise, width
from dovetail.sweep.blocks.kind import on_images
from dovetail.sweep.graph_builder import GraphBuilder, Tensor, scalar


def gated(b: GraphBuilder, x: Tensor) -> Tensor:
    """Squeeze-excite: every channel of ``x`` times a gate that is computed from the means of all channels."""
    squeezed = b.op("GlobalAveragePool", x, shape=(*x.shape[:2], 1, 1))
    if b.draw.chance(0.3):
        squeezed = b.reduce("ReduceMean", x, (2, 3))
    hidden = b.draw.choice((relu, silu))(b, pointwise(b, squeezed, max(2, x.channels // 4)))
    gate = b.draw.choice((sigmoid, hard_sigmoid))(b, pointwise(b, hidden, x.channels))
    return b.op("Mul", x, gate)


@on_images
def squeeze_excite(b: GraphBuilder, x: Tensor) -> Tensor:
    return gated(b, any_activation(b, conv(b, x, width(b))))


@on_images
def residual(b: GraphBuilder, x: Tensor) -> Tensor:
    y = usual_activation(b, conv(b, x, x.channels))
    y = b.op("Add", x, conv(b, y, x.channels))
    return usual_activation(b, y)


@on_images
def bottleneck(b: GraphBuilder, x: Tensor) -> Tensor:
    y = relu(b, pointwise(b, x, max(2, x.channels // 2)))
    y = pointwise(b, relu(b, conv(b, y, y.channels)), width(b))
    return relu(b, b.op("Add", y, pointwise(b, x, y.channels)))


@on_images
def inverted_residual(b: GraphBuilder, x: Tensor) -> Tensor:
    y = usual_activation(b, pointwise(b, x, x.channels * b.draw.choice((2, 3))))
    y = usual_activation(b, conv(b, y, y.channels, ConvShape(b.draw.choice(((3, 3), (5, 5))), groups=y.channels)))
    y = gated(b, y) if b.draw.chance(0.5) else y
    return b.op("Add", x, pointwise(b, y, x.channels))


@on_images
def csp_split(b: GraphBuilder, x: Tensor) -> Tensor:
    """C2f of YOLOv8: half of the channels pass through bottlenecks, and everything is concatenated."""
    act = b.draw.choice((silu, silu, relu, any_activation))
    half = b.draw.choice((4, 6, 8, 12, 15))
    parts = b.split(act(b, pointwise(b, x, 2 * half)), 1, (half, half))
    for _ in range(b.draw.choice((1, 2))):
        y = act(b, conv(b, act(b, conv(b, parts[-1], half)), half))
        parts.append(b.op("Add", parts[-1], y) if b.draw.chance(0.6) else y)
    return act(b, pointwise(b, b.concat(parts, 1), width(b)))


@on_images
def csp_branches(b: GraphBuilder, x: Tensor) -> Tensor:
    """C3 of YOLOv5: two branches from one tensor, concatenated."""
    left = usual_activation(b, pointwise(b, x, width(b)))
    right = usual_activation(b, conv(b, usual_activation(b, pointwise(b, x, width(b))), width(b)))
    return usual_activation(b, pointwise(b, b.concat([left, right], 1), width(b)))


@on_images
def concat_of_ranges(b: GraphBuilder, x: Tensor) -> Tensor:
    """A Concat of tensors with and without negative values, of different sizes."""
    left = b.draw.choice((relu, sigmoid, hard_sigmoid))(b, conv(b, x, width(b)))
    right = b.op("Mul", pointwise(b, x, width(b)), scalar(b.draw.choice((0.05, 1.0, 8.0))))
    y = b.concat([left, right] if b.draw.chance(0.5) else [right, left, x], 1)
    return pointwise(b, y, width(b)) if b.draw.chance(0.7) else y


@on_images
def feature_pyramid(b: GraphBuilder, x: Tensor) -> Tensor:
    """Down by a convolution with stride 2, up by Resize, then added or concatenated."""
    batch, _, height, width_ = x.shape
    down = usual_activation(b, conv(b, x, x.channels, ConvShape(stride=2)))
    mode = b.draw.choice(({"mode": "nearest", "nearest_mode": "floor"}, {"mode": "linear"}))
    coordinates = "asymmetric" if mode["mode"] == "nearest" else b.draw.choice(("half_pixel", "align_corners"))
    shape = (batch, x.channels, height, width_)
    up = b.op(
        *("Resize", down, None, None, np.array(shape)),
        shape=shape,
        coordinate_transformation_mode=coordinates,
        **mode,
    )
    return b.op("Add", x, up) if b.draw.chance(0.5) else pointwise(b, b.concat([up, x], 1), width(b))


@on_images
def spatial_attention(b: GraphBuilder, x: Tensor) -> Tensor:
    """CBAM: a gate per place from the mean and the maximum over channels."""
    y = conv(b, x, width(b))
    both = b.concat([b.reduce("ReduceMean", y, (1,)), b.reduce("ReduceMax", y, (1,))], 1)
    return b.op("Mul", y, sigmoid(b, conv(b, both, 1, ConvShape((7, 7)))))


@on_images
def box_head(b: GraphBuilder, x: Tensor) -> Tensor:
    """The head of YOLOv8: distances as expected values over bins, and class scores."""
    batch, _, height, width_ = x.shape
    places, bins, classes = height * width_, b.draw.choice((4, 8, 16)), b.draw.choice((1, 5, 20))
    boxes = b.reshape(pointwise(b, x, 4 * bins), batch, 4, bins, places)
    probabilities = softmax(b, b.transpose(boxes, 0, 2, 1, 3), 1)
    weights = np.arange(bins, dtype=np.float32).reshape(1, bins, 1, 1)
    distances = b.op("Conv", probabilities, weights, shape=(batch, 1, 4, places), kernel_shape=[1, 1])
    scores = sigmoid(b, b.reshape(pointwise(b, x, classes), batch, classes, places))
    return b.transpose(b.concat([b.reshape(distances, batch, 4, places), scores], 1), 0, 2, 1)


@on_images
def normalized_input(b: GraphBuilder, x: Tensor) -> Tensor:
    """Mean and deviation as an exporter leaves them before the first convolution."""
    mean, deviation = b.draw.normal(1, x.channels, 1, 1), b.draw.uniform(0.2, 3.0, 1, x.channels, 1, 1)
    y = b.op("Div", b.op("Sub", x, mean), deviation)
    return usual_activation(b, conv(b, y, width(b)))


@on_images
def large_kernel_attention(b: GraphBuilder, x: Tensor) -> Tensor:
    """A product of a tensor and its own depthwise convolutions, as in VAN and SegNeXt."""
    y = conv(b, x, x.channels, ConvShape((5, 5), groups=x.channels))
    y = conv(b, y, x.channels, ConvShape((7, 7), dilation=b.draw.choice((1, 3)), groups=x.channels))
    return b.op("Mul", x, pointwise(b, y, x.channels))


@on_images
def classifier(b: GraphBuilder, x: Tensor) -> Tensor:
    """Global pooling, a linear layer and perhaps a Softmax; the scores come back as tokens [N, 1, classes]."""
    y = b.op("GlobalAveragePool", x, shape=(*x.shape[:2], 1, 1))
    flat = b.op("Flatten", y, shape=x.shape[:2], axis=1)
    classes = b.draw.choice((7, 10, 33))
    weights = b.draw.normal(classes, x.channels, std=(1 / x.channels) ** 0.5)
    scores = b.op("Gemm", flat, weights, b.draw.normal(classes), shape=(x.shape[0], classes), transB=1)
    return b.reshape(softmax(b, scores) if b.draw.chance(0.4) else scores, x.shape[0], 1, classes)
