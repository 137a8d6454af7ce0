"""The range that every float value of a QDQ graph can have, as far as its operators bound it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import attribute, constant_of, is_op, scalar_of
from dovetail.numerics.affine import dequantize
from dovetail.numerics.grid import FLOAT8_HIGHEST
from dovetail.qdq.params import is_dequantize, is_quantize, qparams_of


class ValueRange(NamedTuple):
    """The lowest and the highest value that a tensor can have."""

    low: float = -math.inf
    high: float = math.inf


_ANY = ValueRange()
_POSITIVE = ValueRange(0.0)
_UNIT, _SIGNED_UNIT = ValueRange(0.0, 1.0), ValueRange(-1.0, 1.0)
# Operators whose output has a fixed range, whatever they read.
_BOUNDED = {
    **dict.fromkeys(("HardSigmoid", "Sigmoid", "Softmax"), _UNIT),
    **dict.fromkeys(("Cos", "Erf", "Sin", "Softsign", "Tanh"), _SIGNED_UNIT),
    **dict.fromkeys(("Abs", "Exp", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Softplus", "Sqrt"), _POSITIVE),
    "LogSoftmax": ValueRange(high=0.0),
}
# Operators whose outputs are elements or means of their first input.
_MEANS = ("GlobalAveragePool", "ReduceMean")
_WITHIN = (*DATA_MOVEMENT_OPS, *_MEANS, "Cast", "Dropout", "GlobalMaxPool", "ReduceMax", "ReduceMin")


def value_ranges(graph: ir.Graph) -> dict[ir.Value, ValueRange]:
    """Value -> its range; values that nothing bounds are left out.

    A Q/DQ pair is taken as exact inside its own range: what it rounds is less than one step.
    """
    ranges: dict[ir.Value, ValueRange] = {}
    for node in graph:
        inputs = [_ANY if value is None else _known(value, ranges) for value in node.inputs]
        bounded = _range_of(node, inputs)
        if bounded != _ANY:
            ranges.update(dict.fromkeys(node.outputs, bounded))
    return ranges


def represented(params: QParams) -> ValueRange:
    """The range that qparams can represent, at the widest channel."""
    ends = (-FLOAT8_HIGHEST, FLOAT8_HIGHEST)
    if params.dtype.is_integer:
        ends = (params.dtype.grid.low, params.dtype.grid.high)
    low, high = ((end - params.zero_point) * params.scale.astype(np.float64) for end in ends)
    return ValueRange(float(np.min(low)), float(np.max(high)))


def _known(value: ir.Value, ranges: Mapping[ir.Value, ValueRange]) -> ValueRange:
    array = constant_of(value)
    if array is None or array.size == 0 or array.dtype.kind not in "fiub":
        return ranges.get(value, _ANY)
    return ValueRange(float(np.min(array)), float(np.max(array)))


def _range_of(node: ir.Node, inputs: list[ValueRange]) -> ValueRange:
    if is_quantize(node) or is_dequantize(node):
        return _quantized(node, inputs[0])
    if not is_op(node, node.op_type) or not inputs:
        return _ANY
    if is_op(node, *_WITHIN):
        return inputs[0]
    if node.op_type in _BOUNDED:
        return _BOUNDED[node.op_type]
    rule = _RULES.get(node.op_type)
    return _ANY if rule is None else rule(node, inputs)


def _quantized(node: ir.Node, given: ValueRange) -> ValueRange:
    """The real values after a Q or after a DQ node."""
    params = qparams_of(node)
    array = constant_of(node.inputs[0]) if is_dequantize(node) else None
    if array is not None:
        real = dequantize(array, params)
        return ValueRange(float(np.min(real)), float(np.max(real))) if real.size else _ANY
    return _clamped(given, represented(params))


def _clamped(given: ValueRange, ends: ValueRange) -> ValueRange:
    """The range of values that are moved to the nearer end where they are outside."""
    return ValueRange(*(min(max(end, ends.low), ends.high) for end in given))


def _relu(node: ir.Node, inputs: list[ValueRange]) -> ValueRange:
    return ValueRange(max(0.0, inputs[0].low), max(0.0, inputs[0].high))


def _clip(node: ir.Node, inputs: list[ValueRange]) -> ValueRange:
    values = (*node.inputs[1:], None, None)[:2]
    low, high = (scalar_of(value) for value in values)
    if any(value is not None and end is None for value, end in zip(values, (low, high), strict=True)):
        return _ANY
    return _clamped(inputs[0], ValueRange(-math.inf if low is None else low, math.inf if high is None else high))


def _average(node: ir.Node, inputs: list[ValueRange]) -> ValueRange:
    """A mean of elements, among them the zeros of the padding if they are counted."""
    zeros = [ValueRange(0.0, 0.0)] if attribute(node, "count_include_pad", 0) else []
    return _hull(node, [inputs[0], *zeros])


def _hull(node: ir.Node, inputs: list[ValueRange]) -> ValueRange:
    return ValueRange(min(part.low for part in inputs), max(part.high for part in inputs))


def _add(node: ir.Node, inputs: list[ValueRange]) -> ValueRange:
    return ValueRange(sum(part.low for part in inputs), sum(part.high for part in inputs))


def _subtract(node: ir.Node, inputs: list[ValueRange]) -> ValueRange:
    return ValueRange(inputs[0].low - inputs[1].high, inputs[0].high - inputs[1].low)


def _multiply(node: ir.Node, inputs: list[ValueRange]) -> ValueRange:
    if node.inputs[0] is node.inputs[1]:
        return _POSITIVE
    corners = [left * right if left and right else 0.0 for left in inputs[0] for right in inputs[1]]
    return ValueRange(min(corners), max(corners))


def _divide(node: ir.Node, inputs: list[ValueRange]) -> ValueRange:
    divisor = inputs[1]
    if divisor.low <= 0.0 or not math.isfinite(divisor.high):
        return _POSITIVE if inputs[0].low >= 0.0 and divisor.low >= 0.0 else _ANY
    return _multiply(node, [inputs[0], ValueRange(1 / divisor.high, 1 / divisor.low)])


def _power(node: ir.Node, inputs: list[ValueRange]) -> ValueRange:
    exponent = scalar_of(node.inputs[1])
    return _POSITIVE if inputs[0].low >= 0.0 or (exponent is not None and exponent % 2 == 0) else _ANY


def _same_sign(node: ir.Node, inputs: list[ValueRange]) -> ValueRange:
    return _POSITIVE if inputs[0].low >= 0.0 else _ANY


def _pad(node: ir.Node, inputs: list[ValueRange]) -> ValueRange:
    if attribute(node, "mode", "constant") != "constant":
        return inputs[0]
    fill = inputs[2] if len(node.inputs) > 2 and node.inputs[2] is not None else ValueRange(0.0, 0.0)
    return _hull(node, [inputs[0], fill])


def _resize(node: ir.Node, inputs: list[ValueRange]) -> ValueRange:
    overshoots = attribute(node, "mode", "nearest") == "cubic"
    extrapolates = attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    return _ANY if overshoots or extrapolates else inputs[0]


_RULES: Mapping[str, Callable[[ir.Node, list[ValueRange]], ValueRange]] = {
    "Add": _add,
    "AveragePool": _average,
    "Clip": _clip,
    "Concat": _hull,
    "Div": _divide,
    "Max": lambda node, inputs: ValueRange(max(part.low for part in inputs), max(part.high for part in inputs)),
    "Min": lambda node, inputs: ValueRange(min(part.low for part in inputs), min(part.high for part in inputs)),
    "Mul": _multiply,
    "Neg": lambda node, inputs: ValueRange(-inputs[0].high, -inputs[0].low),
    "Pad": _pad,
    "Pow": _power,
    "ReduceSum": _same_sign,
    "Relu": _relu,
    "Resize": _resize,
    "Sub": _subtract,
    "Sum": _add,
    "Where": lambda node, inputs: _hull(node, inputs[1:]),
}
