"""The logit of a sigmoid, which detectors take to refine boxes, is the sigmoid's own input within bounds.

``Log(Clip(s, eps) / Clip(1 - s, eps))`` goes from 1e-5 to 1e5 on its way: no integer grid holds that, and HTP
computes a 16-bit Log wrong without a word (onnxruntime-qnn 2.7.0).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import is_op, scalar_of, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

# Beyond its bounds the logit still moves by as much as the bound on s: what Clip leaves out.
_LARGEST_EPSILON = 1e-3


class _Bounded(NamedTuple):
    """A value within constant bounds."""

    value: ir.Value
    low: float
    high: float


def logit_of_sigmoid(model: ir.Model) -> PassRecord:
    """Replace the logit of a Sigmoid by a Clip of what the Sigmoid reads."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        parts = _ratio(node)
        if parts is None:
            continue
        output = node.outputs[0]
        found = _inside(*parts)
        if isinstance(found, str):
            declined.append(Site(origin_of(output).name, found))
            continue
        edit.replace_value(output, _clip(node, found))
        edit.remove_dead(model.graph, [node])
        changed.append(Site(origin_of(output).name, f"is {origin_of(found.value).name!r} within its bounds"))
    return PassRecord("logit_of_sigmoid", tuple(changed), tuple(declined))


def _ratio(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Numerator and denominator of ``Log(a / b)`` or ``Log(a) - Log(b)``."""
    if is_op(node, "Log"):
        quotient = _producer(node.inputs[0], "Div")
        return None if quotient is None else _both(quotient)
    if not is_op(node, "Sub"):
        return None
    logs = [_producer(value, "Log") for value in node.inputs]
    values = [log.inputs[0] for log in logs if log is not None]
    return (values[0], values[1]) if len(values) == 2 and values[0] and values[1] else None


def _inside(top: ir.Value, bottom: ir.Value) -> _Bounded | str:
    """What the Sigmoid reads, with the bounds of the logit; or why this is not the logit of a Sigmoid."""
    above, below = _bounds(top), _bounds(bottom)
    minus = _producer(below.value, "Sub")
    if minus is None or scalar_of(minus.inputs[0]) != 1 or minus.inputs[1] is None:
        return "the denominator is not one minus a value"
    other = _bounds(minus.inputs[1])
    sigmoid = _producer(above.value, "Sigmoid")
    if sigmoid is None or sigmoid.inputs[0] is None or other.value is not above.value:
        return "numerator and denominator are not made of one Sigmoid"
    low, high = max(0.0, above.low), min(1.0, other.high, 1 - below.low)
    inner = max(0.0, other.low, 1 - below.high, 1 - min(1.0, above.high))  # the bounds that must not matter
    if max(low, 1 - high, inner) > _LARGEST_EPSILON:
        return "its bounds cut into the range of the Sigmoid"
    lowest = math.log(low / (1 - low)) if low > 0 else -math.inf
    highest = math.log(high / (1 - high)) if high < 1 else math.inf
    return _Bounded(sigmoid.inputs[0], lowest, highest)


def _bounds(value: ir.Value) -> _Bounded:
    """Look through the Clips (and Max, Min with a constant) that a value came through."""
    low, high = -math.inf, math.inf
    while (limits := _limits(value.producer())) is not None:
        value, least, most = limits
        low, high = max(low, least), min(high, most)
    return _Bounded(value, low, high)


def _limits(node: ir.Node | None) -> _Bounded | None:
    """What a Clip, or a Max or Min with a constant, reads, and its bounds; None for any other node."""
    if node is None or not node.inputs or node.inputs[0] is None:
        return None
    ends: list[float | None] = [-math.inf, math.inf]
    if is_op(node, "Clip"):
        for index, value in enumerate(node.inputs[1:]):
            ends[index] = ends[index] if value is None else scalar_of(value)
    elif is_op(node, "Max", "Min") and len(node.inputs) == 2:
        ends[0 if node.op_type == "Max" else 1] = scalar_of(node.inputs[1])
    else:
        return None
    low, high = ends
    return None if low is None or high is None else _Bounded(node.inputs[0], low, high)


def _clip(node: ir.Node, found: _Bounded) -> ir.Value:
    output, graph = node.outputs[0], edit.graph_of(node)
    if math.isinf(found.low) and math.isinf(found.high):
        return found.value
    ends: list[ir.Value | None] = []
    for tag, number in (("low", found.low), ("high", found.high)):
        array = np.asarray(number, np.float32)
        name = f"{output.name}/{tag}"
        ends.append(None if math.isinf(number) else edit.add_initializer(graph, array, name=name, source=output))
    shape = shape_of(output)
    return edit.insert(node, "Clip", [found.value, *ends], source=output, replaces=[node], shape=shape)


def _both(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    left, right = node.inputs
    return None if left is None or right is None else (left, right)


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if is_op(node, op_type) else None
