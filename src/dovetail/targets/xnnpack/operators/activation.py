"""Mappings of activation functions.

XNNPACK (executorch 1.5.1) delegates Gelu, LeakyRelu, HardSwish, Sigmoid and Tanh; the others are written with exp, log,
clamp and arithmetic, which it delegates too.
"""

from __future__ import annotations

from dovetail.targets.xnnpack.operators.registry import Call, Function, Tensor, constant_like, operator, torch

# The defaults of ONNX.
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


@operator("Gelu")
def gelu(call: Call) -> Function:
    approximate = str(call.attribute("approximate", "none"))
    return lambda x: torch.nn.functional.gelu(x, approximate=approximate)


@operator("LeakyRelu")
def leaky_relu(call: Call) -> Function:
    slope = float(call.attribute("alpha", 0.01))
    return lambda x: torch.nn.functional.leaky_relu(x, slope)


@operator("PRelu")
def prelu(call: Call) -> Function:
    return lambda x, slope: torch.relu(x) + slope * torch.clamp(x, max=0.0)


@operator("Elu", "Celu")
def elu(call: Call) -> Function:
    alpha = float(call.attribute("alpha", 1.0))
    if call.node.op_type == "Elu":
        return _exponential(call, alpha, 1.0)
    if alpha == 0:
        raise call.unsupported("alpha 0 is not supported, because it divides by alpha; use another alpha, or Relu")
    return _exponential(call, alpha, 1 / alpha)


@operator("Selu")
def selu(call: Call) -> Function:
    alpha, gamma = float(call.attribute("alpha", _SELU_ALPHA)), float(call.attribute("gamma", _SELU_GAMMA))
    inner, gain = _exponential(call, alpha, 1.0), constant_like(call, gamma)
    return lambda x: inner(x) * gain


def _exponential(call: Call, alpha: float, steepness: float) -> Function:
    """x above zero, alpha (exp(steepness x) - 1) below."""
    factor, one, slope = (constant_like(call, value) for value in (alpha, 1.0, steepness))

    def activate(x: Tensor) -> Tensor:
        below = torch.clamp(x, max=0.0)
        return torch.relu(x) + factor * (torch.exp(below if steepness == 1.0 else below * slope) - one)

    return activate


@operator("HardSigmoid")
def hard_sigmoid(call: Call) -> Function:
    alpha, beta = float(call.attribute("alpha", 0.2)), float(call.attribute("beta", 0.5))
    return lambda x: torch.clamp(x * alpha + beta, 0.0, 1.0)


@operator("HardSwish")
def hard_swish(call: Call) -> Function:
    return lambda x: torch.nn.functional.hardswish(x)


@operator("Softplus")
def softplus(call: Call) -> Function:
    """log(1 + exp(x)), written so that the exponential does not overflow."""
    one = constant_like(call, 1.0)
    return lambda x: torch.relu(x) + torch.log(torch.exp(-torch.abs(x)) + one)


@operator("Mish")
def mish(call: Call) -> Function:
    inner: Function = softplus(call)
    return lambda x: x * torch.tanh(inner(x))


@operator("Softsign")
def softsign(call: Call) -> Function:
    one = constant_like(call, 1.0)
    return lambda x: x / (torch.abs(x) + one)


@operator("ThresholdedRelu")
def thresholded_relu(call: Call) -> Function:
    alpha = float(call.attribute("alpha", 1.0))
    return lambda x: torch.where(x > alpha, x, torch.zeros_like(x))
