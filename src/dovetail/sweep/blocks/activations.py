"""Activation functions as exporters write them: as one operator, or decomposed."""

from __future__ import annotations

import numpy as np

from dovetail.sweep.blocks.kind import Build
from dovetail.sweep.graph_builder import GraphBuilder, Tensor, scalar


def relu(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.op("Relu", x)


def relu6(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.op("Clip", x, scalar(0), scalar(6))


def clip(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.op("Clip", x, scalar(-1), scalar(1))


def leaky_relu(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.op("LeakyRelu", x, alpha=b.draw.choice((0.01, 0.1, 0.2)))


def prelu(b: GraphBuilder, x: Tensor) -> Tensor:
    channels = (x.channels,) + (1,) * (len(x.shape) - 2 if len(x.shape) == 4 else 0)
    return b.op("PRelu", x, b.draw.uniform(0.05, 0.4, *channels))


def hard_swish(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.op("HardSwish", x)


def decomposed_hard_swish(b: GraphBuilder, x: Tensor) -> Tensor:
    gate = b.op("Clip", b.op("Add", x, scalar(3)), scalar(0), scalar(6))
    return b.op("Div", b.op("Mul", x, gate), scalar(6))


def hard_sigmoid(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.op("HardSigmoid", x, alpha=b.draw.choice((1 / 6, 0.2)), beta=0.5)


def silu(b: GraphBuilder, x: Tensor) -> Tensor:
    gate = b.op("Sigmoid", x)
    return b.op("Mul", x, gate) if b.draw.chance(0.7) else b.op("Mul", gate, x)


def quick_gelu(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, scalar(1.702))))


def mish(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.op("Mish", x)


def decomposed_mish(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.op("Mul", x, b.op("Tanh", b.op("Softplus", x)))


def gelu(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.op("Gelu", x, approximate=b.draw.choice(("none", "tanh")))


def decomposed_gelu(b: GraphBuilder, x: Tensor) -> Tensor:
    erf = b.op("Erf", b.op("Div", x, scalar(2**0.5)))
    return b.op("Mul", b.op("Mul", x, b.op("Add", erf, scalar(1))), scalar(0.5))


def elu(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.op("Elu", x, alpha=1.0)


def sigmoid(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.op("Sigmoid", x)


def tanh(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.op("Tanh", x)


def softplus(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.op("Softplus", x)


def squared_relu(b: GraphBuilder, x: Tensor) -> Tensor:
    positive = b.op("Relu", x)
    return b.op("Mul", positive, positive) if b.draw.chance(0.5) else b.op("Pow", positive, scalar(2))


def scaled_relu(b: GraphBuilder, x: Tensor) -> Tensor:
    """StarReLU of MetaFormer."""
    positive = b.op("Relu", x)
    return b.op("Add", b.op("Mul", b.op("Mul", positive, positive), scalar(0.8944)), scalar(-0.4472))


def none(b: GraphBuilder, x: Tensor) -> Tensor:
    return x


ACTIVATIONS: tuple[Build, ...] = (
    *(relu, relu6, clip, leaky_relu, prelu, hard_swish, decomposed_hard_swish, hard_sigmoid, silu, quick_gelu, mish),
    *(decomposed_mish, gelu, decomposed_gelu, elu, sigmoid, tanh, softplus, squared_relu, scaled_relu),
)


def any_activation(b: GraphBuilder, x: Tensor) -> Tensor:
    """One of all activation functions."""
    return b.draw.choice(ACTIVATIONS)(b, x)


def usual_activation(b: GraphBuilder, x: Tensor) -> Tensor:
    """An activation function as it stands after most convolutions, or none."""
    return b.draw.choice((relu, relu, relu6, leaky_relu, hard_swish, silu, silu, gelu, none))(b, x)


def softmax(b: GraphBuilder, x: Tensor, axis: int = -1) -> Tensor:
    """A Softmax."""
    return b.op("Softmax", x, axis=axis)


def layer_scale(b: GraphBuilder, x: Tensor) -> Tensor:
    """A learned factor per channel of tokens, most of them small."""
    return b.op("Mul", x, np.abs(b.draw.normal(x.shape[-1], std=0.2)) + np.float32(0.01))
