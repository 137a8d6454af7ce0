"""Mappings of elementwise operators, comparisons and softmax."""

from __future__ import annotations

from functools import reduce

import onnx_ir as ir

from dovetail.model.edit import constant_of, is_op
from dovetail.targets.xnnpack.operators.registry import (
    MOST_AXES,
    OPERATORS,
    Call,
    Function,
    Operator,
    Tensor,
    constant_like,
    operator,
    torch,
)

# ONNX operators without attributes -> the torch function that computes the same.
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
# Operators that XNNPACK runs in channels-last layout, and operators before which it restores the layout.
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
_CHANNELS_FIRST = ("Flatten", "Gemm", "MatMul", "Reshape", "Squeeze", "Unsqueeze")
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
    """Integers are divided with truncation, which is another torch operator that XNNPACK does not support."""
    return lambda x, y: torch.div(x, y) if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


@operator("Reciprocal")
def reciprocal(call: Call) -> Function:
    """A division: XNNPACK has no reciprocal."""
    one = constant_like(call, 1.0)
    return lambda x: torch.div(one, x)


@operator("Pow")
def power(call: Call) -> Function:
    """XNNPACK has squares and square roots only."""
    exponent = constant_of(call.node.inputs[1])
    function = None
    if exponent is not None and exponent.size == 1 and call.output_shape() == call.shape():  # no axes are added
        function = POWERS.get(float(exponent.reshape(())))
    return (lambda x, y: torch.pow(x, y)) if function is None or not call.is_float() else lambda x, _: function(x)


POWERS: dict[float, Function] = {
    0.5: lambda x: torch.sqrt(x),
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
}


@operator("Sum", "Mean")
def total(call: Call) -> Function:
    count = len(call.node.inputs)
    if call.node.op_type == "Sum" or count == 1:
        return lambda *tensors: reduce(torch.add, tensors) if count > 1 else tensors[0].clone()
    return lambda *tensors: reduce(torch.add, tensors) * (1 / count)


@operator("Clip", constants=(1, 2))
def clip(call: Call) -> Function:
    low, high = (None if (bound := call.constant(i)) is None else bound.reshape(()).item() for i in (1, 2))
    return lambda x, *_: torch.clamp(x, low, high)


@operator("Cast")
def cast(call: Call) -> Function:
    dtype = int(call.attribute("to", 1))
    if dtype not in _TYPES:
        raise call.unsupported(f"a cast to ONNX type {dtype} is not supported")
    return lambda x: x.to(getattr(torch, _TYPES[dtype]))


@operator("LogSoftmax")
def log_softmax(call: Call) -> Function:
    axis = call.axis(-1)
    return lambda x: torch.log_softmax(x, axis)


@operator("Softmax")
def softmax(call: Call) -> Function:
    """Permute and reshape so that the softmax is over the last axis, the only one that XNNPACK supports."""
    shape, axis = call.shape(), call.axis(-1)
    last = len(shape) - 1
    supported = axis == last and not (last == 3 and _is_channels_last(call.node.inputs[0]))
    if supported or 0 in shape or len(shape) > MOST_AXES:
        return lambda x: torch.softmax(x, axis)
    order = [*(i for i in range(len(shape)) if i != axis), axis]
    inverse, permuted = [order.index(i) for i in range(len(shape))], [shape[i] for i in order]

    def over_rows(x: Tensor) -> Tensor:
        rows = (x if axis == last else x.permute(order)).reshape(-1, permuted[-1])
        result = torch.softmax(rows, 1).reshape(permuted)
        return result if axis == last else result.permute(inverse)

    return over_rows


def _is_channels_last(value: ir.Value | None) -> bool:
    """Whether XNNPACK may hold a tensor in channels-last layout.

    There a softmax silently runs over the channels, whatever its axis (executorch 1.5.1: 12 dB and less); a reshape in
    front of it restores the layout.
    """
    seen, pending = {value}, [value]
    while pending:
        current = pending.pop()
        producer = None if current is None else current.producer()
        if producer is None or is_op(producer, *_CHANNELS_FIRST):
            continue
        if is_op(producer, *_CHANNELS_LAST):
            return True
        pending.extend(dict.fromkeys(source for source in producer.inputs if source not in seen))
        seen.update(producer.inputs)
    return False


@operator("Identity")
def identity(call: Call) -> Function:
    return lambda x: x.clone()


@operator("Mod")
def modulo(call: Call) -> Function:
    name = "fmod" if call.attribute("fmod", 0) else "remainder"
    return lambda x, y: getattr(torch, name)(x, y)
