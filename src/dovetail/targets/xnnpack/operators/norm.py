"""Normalizations. XNNPACK (executorch 1.5.1) has none: they are written as means and arithmetic, which it has."""

from __future__ import annotations

import math

from dovetail.targets.xnnpack.operators.reduce import mean_of_rows
from dovetail.targets.xnnpack.operators.registry import MOST_AXES, Call, Function, Tensor, operator, torch


@operator("LayerNormalization")
def layer_norm(call: Call) -> Function:
    """Over the last axes, each with a factor of its own."""
    if 0 in call.shape() or len(call.shape()) > MOST_AXES:
        return native_layer_norm(call)
    shape, number = _normalized(call)
    count, epsilon = math.prod(shape), _small(number)

    def normalize(x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
        scaled = _standardized(x, count, epsilon) * weight
        return scaled if bias is None else scaled + bias

    return normalize


def _small(number: float) -> Tensor:
    """A number with as many axes as the means have: XNNPACK would turn them twice to add a scalar."""
    return torch.full((1, 1, 1, 1), number)


def _standardized(x: Tensor, count: int, epsilon: Tensor) -> Tensor:
    """So many numbers each, one behind the other, brought to mean 0 and variance 1."""
    flat = x.reshape(1, -1, 1, count)
    centred = flat - mean_of_rows(flat)
    return (centred * torch.rsqrt(mean_of_rows(centred * centred) + epsilon)).reshape(x.shape)


def native_layer_norm(call: Call) -> Function:
    """As a model's author writes it; runs outside XNNPACK."""
    shape, epsilon = _normalized(call)

    def normalize(x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
        return torch.nn.functional.layer_norm(x, shape, _whole(weight, shape), _whole(bias, shape), epsilon)

    return normalize


def _normalized(call: Call) -> tuple[tuple[int, ...], float]:
    """The shape of the axes that are normalized together, and what is added to their variance."""
    if sum(bool(value.name) for value in call.node.outputs) > 1:
        raise call.refuse("its mean and its deviation have no form here")
    return call.shape()[call.axis(-1) :], float(call.attribute("epsilon", 1e-5))


def _whole(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor repeated to a shape, where it does not have it yet."""
    return x if x is None or tuple(x.shape) == shape else x.expand(shape)


@operator("InstanceNormalization", "GroupNormalization")
def group_norm(call: Call) -> Function:
    """Over groups of channels and all positions; a factor per channel."""
    shape, epsilon = call.shape(), _small(float(call.attribute("epsilon", 1e-5)))
    groups = int(call.attribute("num_groups", shape[1]))
    if 0 in shape or shape[1] % groups or len(shape) > MOST_AXES:
        return native_group_norm(call)
    count, channels = math.prod(shape[1:]) // groups, (shape[1], *(1 for _ in shape[2:]))
    return lambda x, weight, bias: _standardized(x, count, epsilon) * weight.reshape(channels) + bias.reshape(channels)


def native_group_norm(call: Call) -> Function:
    """As a model's author writes it; runs outside XNNPACK."""
    groups, epsilon = call.attribute("num_groups", None), float(call.attribute("epsilon", 1e-5))
    kit = torch.nn.functional
    if groups is None:
        return lambda x, weight, bias: kit.instance_norm(x, None, None, weight, bias, True, 0.0, epsilon)
    return lambda x, weight, bias: kit.group_norm(x, int(groups), weight, bias, epsilon)


@operator("BatchNormalization")
def batch_norm(call: Call) -> Function:
    epsilon = float(call.attribute("epsilon", 1e-5))
    return lambda x, weight, bias, mean, var: torch.nn.functional.batch_norm(
        x, mean, var, weight, bias, False, 0.0, epsilon
    )
