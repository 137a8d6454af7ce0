"""Mappings of normalizations: XNNPACK (executorch 1.5.1) has none, so they are written as means and arithmetic."""

from __future__ import annotations

import math

from dovetail.targets.xnnpack.operators.reduce import mean_of_rows
from dovetail.targets.xnnpack.operators.registry import MOST_AXES, Call, Function, Tensor, operator, torch


@operator("LayerNormalization")
def layer_norm(call: Call) -> Function:
    """Normalize over the last axes, with a weight per element."""
    if 0 in call.shape() or len(call.shape()) > MOST_AXES:
        return native_layer_norm(call)
    shape, value = _normalized(call)
    count, epsilon = math.prod(shape), _epsilon(value)

    def normalize(x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
        scaled = _standardized(x, count, epsilon) * weight
        return scaled if bias is None else scaled + bias

    return normalize


def _epsilon(value: float) -> Tensor:
    """Epsilon with the rank of the means: to add a scalar XNNPACK would transpose them twice."""
    return torch.full((1, 1, 1, 1), value)


def _standardized(x: Tensor, count: int, epsilon: Tensor) -> Tensor:
    """Bring every ``count`` consecutive elements to mean 0 and variance 1."""
    flat = x.reshape(1, -1, 1, count)
    centered = flat - mean_of_rows(flat)
    return (centered * torch.rsqrt(mean_of_rows(centered * centered) + epsilon)).reshape(x.shape)


def native_layer_norm(call: Call) -> Function:
    """The torch function that a model's author uses; it is not delegated."""
    shape, epsilon = _normalized(call)

    def normalize(x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
        return torch.nn.functional.layer_norm(x, shape, _expanded(weight, shape), _expanded(bias, shape), epsilon)

    return normalize


def _normalized(call: Call) -> tuple[tuple[int, ...], float]:
    """The shape of the normalized axes, and epsilon."""
    if sum(bool(value.name) for value in call.node.outputs) > 1:
        raise call.unsupported("the outputs Mean and InvStdDev are not supported")
    return call.shape()[call.axis(-1) :], float(call.attribute("epsilon", 1e-5))


def _expanded(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Expand a tensor to a shape, if it does not have it."""
    return x if x is None or tuple(x.shape) == shape else x.expand(shape)


@operator("InstanceNormalization", "GroupNormalization")
def group_norm(call: Call) -> Function:
    """Normalize over groups of channels and all positions, with a weight per channel."""
    shape, epsilon = call.shape(), _epsilon(float(call.attribute("epsilon", 1e-5)))
    groups = int(call.attribute("num_groups", shape[1]))
    if 0 in shape or shape[1] % groups or len(shape) > MOST_AXES:
        return native_group_norm(call)
    count, channels = math.prod(shape[1:]) // groups, (shape[1], *(1 for _ in shape[2:]))
    return lambda x, weight, bias: _standardized(x, count, epsilon) * weight.reshape(channels) + bias.reshape(channels)


def native_group_norm(call: Call) -> Function:
    """The torch function that a model's author uses; it is not delegated."""
    groups, epsilon = call.attribute("num_groups", None), float(call.attribute("epsilon", 1e-5))
    functional = torch.nn.functional
    if groups is None:
        return lambda x, weight, bias: functional.instance_norm(x, None, None, weight, bias, True, 0.0, epsilon)
    return lambda x, weight, bias: functional.group_norm(x, int(groups), weight, bias, epsilon)


@operator("BatchNormalization")
def batch_norm(call: Call) -> Function:
    epsilon = float(call.attribute("epsilon", 1e-5))
    return lambda x, weight, bias, mean, var: torch.nn.functional.batch_norm(
        x, mean, var, weight, bias, False, 0.0, epsilon
    )
