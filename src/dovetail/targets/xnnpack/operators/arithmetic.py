"""Elementwise operators, activations, comparisons."""

from __future__ import annotations

from functools import reduce

import onnx_ir as ir

from dovetail.model.edit import is_op
from dovetail.targets.xnnpack.operators.registry import (
    MOST_AXES,
    OPERATORS,
    Call,
    Function,
    Operator,
    Tensor,
    operator,
    torch,
)

# Operators with the same meaning, and no attributes, in torch -> the function's name.
_SAME = {
    "Abs": "abs",
    "Add": "add",
    "And": "logical_and",
    "Ceil": "ceil",
    "Cos": "cos",
    "Equal": "eq",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "IsNaN": "isnan",
    "Less": "lt",
    "LessOrEqual": "le",
    "Log": "log",
    "Mul": "mul",
    "Neg": "neg",
    "Not": "logical_not",
    "Or": "logical_or",
    "Reciprocal": "reciprocal",
    "Relu": "relu",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sqrt": "sqrt",
    "Sub": "sub",
    "Tanh": "tanh",
    "Where": "where",
    "Xor": "logical_xor",
}
# Operators that XNNPACK runs with the channels last, and those in front of which it brings the order back.
_CHANNELS_LAST = (
    "AveragePool",
    "Conv",
    "ConvTranspose",
    "GlobalAveragePool",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "MaxPool",
    "PRelu",
    "ReduceL2",
    "ReduceMean",
    "ReduceSum",
    "Resize",
)
_ORDERED = ("Flatten", "Gemm", "MatMul", "Reshape", "Squeeze", "Unsqueeze")
_TYPES = {1: "float32", 6: "int32", 7: "int64", 9: "bool", 2: "uint8", 3: "int8", 11: "float64"}


def _named(name: str) -> Operator:
    return Operator(lambda call: lambda *tensors: getattr(torch, name)(*tensors))


OPERATORS.update({op: _named(name) for op, name in _SAME.items()})


@operator("Max", "Min")
def extreme(call: Call) -> Function:
    name = "maximum" if call.node.op_type == "Max" else "minimum"
    return lambda *tensors: reduce(getattr(torch, name), tensors)


@operator("Div")
def divide(call: Call) -> Function:
    """True for floats; integers are cut toward zero, in a form of its own, which XNNPACK does not take."""
    return lambda x, y: torch.div(x, y) if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


@operator("Pow")
def power(call: Call) -> Function:
    return lambda x, y: torch.pow(x, y)


@operator("Clip", numbers=(1, 2))
def clip(call: Call) -> Function:
    low, high = (None if (n := call.number(i)) is None else n.reshape(()).item() for i in (1, 2))
    return lambda x, *_: torch.clamp(x, low, high)


@operator("Cast")
def cast(call: Call) -> Function:
    wanted = int(call.attribute("to", 1))
    if wanted not in _TYPES:
        raise call.refuse(f"casts to ONNX type {wanted}, which has no form here")
    return lambda x: x.to(getattr(torch, _TYPES[wanted]))


@operator("Gelu")
def gelu(call: Call) -> Function:
    approximate = str(call.attribute("approximate", "none"))
    return lambda x: torch.nn.functional.gelu(x, approximate=approximate)


@operator("LeakyRelu")
def leaky_relu(call: Call) -> Function:
    slope = float(call.attribute("alpha", 0.01))
    return lambda x: torch.nn.functional.leaky_relu(x, slope)


@operator("Elu")
def elu(call: Call) -> Function:
    alpha = float(call.attribute("alpha", 1.0))
    return lambda x: torch.nn.functional.elu(x, alpha)


@operator("PRelu")
def prelu(call: Call) -> Function:
    return lambda x, slope: torch.where(x < 0, x * slope, x)


@operator("HardSigmoid")
def hard_sigmoid(call: Call) -> Function:
    alpha, beta = float(call.attribute("alpha", 0.2)), float(call.attribute("beta", 0.5))
    return lambda x: torch.clamp(x * alpha + beta, 0.0, 1.0)


@operator("HardSwish")
def hard_swish(call: Call) -> Function:
    return lambda x: torch.nn.functional.hardswish(x)


@operator("LogSoftmax")
def log_softmax(call: Call) -> Function:
    axis = call.axis(-1)
    return lambda x: torch.log_softmax(x, axis)


@operator("Softmax")
def softmax(call: Call) -> Function:
    """Over the last axis, which is the one that XNNPACK takes."""
    shape, axis = call.shape(), call.axis(-1)
    last = len(shape) - 1
    as_it_is = axis == last and not (last == 3 and _is_channels_last(call.node.inputs[0]))
    if as_it_is or 0 in shape or len(shape) > MOST_AXES:
        return lambda x: torch.softmax(x, axis)
    order = [*(i for i in range(len(shape)) if i != axis), axis]
    back, turned = [order.index(i) for i in range(len(shape))], [shape[i] for i in order]

    def of_rows(x: Tensor) -> Tensor:
        rows = (x if axis == last else x.permute(order)).reshape(-1, turned[-1])
        found = torch.softmax(rows, 1).reshape(turned)
        return found if axis == last else found.permute(back)

    return of_rows


def _is_channels_last(value: ir.Value | None) -> bool:
    """Whether XNNPACK may hold a tensor with its channels last.

    A softmax there runs over the channels, whatever its axis (executorch 1.5.1: 12 dB and less, and nothing is said);
    a reshape in front brings the order back.
    """
    seen, ahead = {value}, [value]
    while ahead:
        one = ahead.pop()
        producer = None if one is None else one.producer()
        if producer is None or is_op(producer, *_ORDERED):
            continue
        if is_op(producer, *_CHANNELS_LAST):
            return True
        ahead.extend(dict.fromkeys(each for each in producer.inputs if each not in seen))
        seen.update(producer.inputs)
    return False


@operator("Identity")
def identity(call: Call) -> Function:
    return lambda x: x.clone()


@operator("Mod")
def modulo(call: Call) -> Function:
    name = "fmod" if call.attribute("fmod", 0) else "remainder"
    return lambda x, y: getattr(torch, name)(x, y)
