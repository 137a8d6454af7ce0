"""The part of a tensor's range in which the activation functions that read it are not constant.

A convolution before a SiLU often reaches far below zero: -69 to 21 in an early layer of YOLOv8n. Everything below
-5 gives nearly the same output, so in 8 bits the steps are better spent on the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import lru_cache, partial

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, DType, Encoding
from dovetail.model.edit import attribute, is_float, is_op
from dovetail.model.silu import gated_input

Function = Callable[[Array], Array]

# By how many steps of the output, quantized with the same number of bits, an element may change.
_MOST_STEPS = 0.25
# An end that moves by fewer steps of the input stays where it is.
_LEAST_GAIN_STEPS = 4
_POINTS = 4096


def needed_range(values: Collection[ir.Value], low: float, high: float, encoding: Encoding) -> tuple[float, float]:
    """The range that all readers of these tensors need of [low, high], the range of their elements.

    It is the whole one unless all of them are activation functions, and unless the encoding has 8-bit integers: more
    bits gain nothing.
    """
    readers = _functions(values) if encoding.dtype.is_integer and encoding.dtype.bits == DType.U8.bits else None
    if not readers or not (math.isfinite(low) and math.isfinite(high)) or low >= high:
        return low, high
    ranges = [_not_constant(function, low, high, encoding) for function in readers]
    return min(start for start, _ in ranges), max(end for _, end in ranges)


def _functions(values: Collection[ir.Value]) -> list[Function] | None:
    """The activation functions that read tensors of a group; None if anything else does."""
    functions = []
    for value in values:
        if value.is_graph_output():
            return None
        for node, _ in value.uses():
            if _shares_scale(node, values):
                continue  # its outputs have readers of their own
            function = _function(node, value)
            if function is None:
                return None
            functions.append(function)
    return functions


def _shares_scale(node: ir.Node, values: Collection[ir.Value]) -> bool:
    """Whether all outputs of a node are in the group: not if it has integers as output, as ArgMax or Greater."""
    used = [output for output in node.outputs if is_float(output) or output.uses() or output.is_graph_output()]
    return bool(used) and all(output in values for output in used)


def _function(node: ir.Node, value: ir.Value) -> Function | None:
    """What a node computes of each element of a tensor."""
    if is_op(node, "Mul"):
        index = gated_input(node)
        return _silu if index is not None and node.inputs[index] is value else None
    if is_op(node, "Sigmoid"):
        uses = [user for user, _ in node.outputs[0].uses()]
        gates = all(gated_input(user) is not None for user in uses) and not node.outputs[0].is_graph_output()
        return _silu if uses and gates else _sigmoid
    if is_op(node, "HardSigmoid"):
        return _hard_sigmoid_with(float(attribute(node, "alpha", 0.2)), float(attribute(node, "beta", 0.5)))
    return _FUNCTIONS.get(node.op_type) if is_op(node, *_FUNCTIONS) else None


@lru_cache(maxsize=1024)
def _not_constant(function: Function, low: float, high: float, encoding: Encoding) -> tuple[float, float]:
    """The part of [low, high] outside of which a function changes by less than a fraction of a step of its output."""
    x = np.linspace(low, high, _POINTS)
    y = function(x)
    steps = encoding.dtype.grid.high - encoding.dtype.grid.low
    most = _MOST_STEPS * (max(float(y.max()), 0.0) - min(float(y.min()), 0.0)) / steps
    start, end = x[_constant_points(y, most)], x[-1 - _constant_points(y[::-1], most)]
    if start >= end:  # constant everywhere, as the gate of a saturated squeeze-and-excite block
        return low, high
    least_gain = _LEAST_GAIN_STEPS * (high - low) / steps
    return (float(start) if start - low > least_gain else low, float(end) if high - end > least_gain else high)


def _constant_points(y: Array, most: float) -> int:
    """The index of the last point up to which all points before it differ from it by at most ``most``."""
    spread = np.maximum(np.maximum.accumulate(y) - y, y - np.minimum.accumulate(y))
    return int(np.flatnonzero(spread <= most).max(initial=0)) if most > 0 else 0


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)))


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def _hard_sigmoid(alpha: float, beta: float, x: Array) -> Array:
    return np.clip(alpha * x + beta, 0, 1)


@lru_cache
def _hard_sigmoid_with(alpha: float, beta: float) -> Function:
    return partial(_hard_sigmoid, alpha, beta)


def _hard_swish(x: Array) -> Array:
    return x * _hard_sigmoid(1 / 6, 0.5, x)


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))))


_FUNCTIONS: dict[str, Function] = {"Gelu": _gelu, "HardSwish": _hard_swish, "Tanh": np.tanh}
