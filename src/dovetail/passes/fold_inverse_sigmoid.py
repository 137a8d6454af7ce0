"""Replace the logit of a Sigmoid, which detectors compute to refine boxes, by the input of the Sigmoid, clipped.

The quotient in ``Log(Clip(s, eps) / Clip(1 - s, eps))`` ranges from 1e-5 to 1e5, which no integer type can represent,
and HTP silently computes a 16-bit Log wrong (onnxruntime-qnn 2.7.0).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import is_op, scalar_of, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

# Data movement with one output that moves the input of a Sigmoid as it moves its output.
_MOVES = tuple(op for op in DATA_MOVEMENT_OPS if op not in ("MaxPool", "Split"))
# Beyond its bounds the original logit still changes, by about the bound on s; the Clip ignores that.
_LARGEST_EPSILON = 1e-3


class _Bounded(NamedTuple):
    """A value and its constant bounds."""

    value: ir.Value
    low: float
    high: float


def fold_inverse_sigmoid(model: ir.Model) -> PassRecord:
    """Replace the logit of a Sigmoid by a Clip of the Sigmoid's input, any other ratio before a Log by two Logs."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        ratio = _ratio(node)
        if ratio is None:
            continue
        output = node.outputs[0]
        logit = _sigmoid_input(node, *ratio)
        if isinstance(logit, str):
            if is_op(node, "Log") and _is_bounded_below(*ratio):
                _subtract_logs(node, *ratio)
                changed.append(Site(origin_of(output).name, f"written as a difference of two logarithms: {logit}"))
            else:
                declined.append(Site(origin_of(output).name, logit))
            continue
        edit.replace_value(output, _clip(node, logit))
        edit.remove_dead(model.graph, [node])
        changed.append(Site(origin_of(output).name, f"replaced by {origin_of(logit.value).name!r} within its bounds"))
    return PassRecord("fold_inverse_sigmoid", tuple(changed), tuple(declined))


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


def _is_bounded_below(numerator: ir.Value, denominator: ir.Value) -> bool:
    """Whether both have a positive lower bound, so that each has a logarithm; their ratio is on a logarithmic scale."""
    return min(_bounds(numerator).low, _bounds(denominator).low) > 0


def _subtract_logs(log: ir.Node, numerator: ir.Value, denominator: ir.Value) -> None:
    """Replace ``Log(a / b)`` by ``Log(a) - Log(b)``: both have the range of a box, their ratio has its square."""
    output, logs = log.outputs[0], []
    for value in (numerator, denominator):
        logs.append(edit.insert(log, "Log", [value], source=output, replaces=[log], shape=shape_of(value)))
    difference = edit.insert(log, "Sub", logs, source=output, replaces=[log], shape=shape_of(output))
    edit.replace_value(output, difference)
    edit.remove_dead(edit.graph_of(log), [log])


def _sigmoid_input(node: ir.Node, numerator: ir.Value, denominator: ir.Value) -> _Bounded | str:
    """The input of the Sigmoid, with the bounds of the logit; or why this is not the logit of a Sigmoid.

    Data movement after the Sigmoid (the selection of boxes by a TopK) is repeated on its input, before ``node``.
    """
    above, below = _bounds(numerator), _bounds(denominator)
    minus = _producer(below.value, "Sub")
    if minus is None or scalar_of(minus.inputs[0]) != 1 or minus.inputs[1] is None:
        return "the denominator is not one minus a value"
    subtracted = _bounds(minus.inputs[1])
    moves, source = _before_moves(above.value)
    sigmoid = _producer(source, "Sigmoid")
    if sigmoid is None or sigmoid.inputs[0] is None or subtracted.value is not above.value:
        return "numerator and denominator do not come from the same Sigmoid"
    low, high = max(0.0, above.low), min(1.0, subtracted.high, 1 - below.low)
    redundant = max(0.0, subtracted.low, 1 - below.high, 1 - min(1.0, above.high))  # bounds that must not take effect
    if max(low, 1 - high, redundant) > _LARGEST_EPSILON:
        return "its bounds clip the range of the Sigmoid"
    lowest = math.log(low / (1 - low)) if low > 0 else -math.inf
    highest = math.log(high / (1 - high)) if high < 1 else math.inf
    logit = sigmoid.inputs[0]
    for move in moves:
        logit = edit.insert_copy(node, move, [logit, *move.inputs[1:]])
    return _Bounded(logit, lowest, highest)


def _before_moves(value: ir.Value) -> tuple[list[ir.Node], ir.Value]:
    """The data movement that produced a value, in order, and the value that it moves."""
    moves: list[ir.Node] = []
    while is_op(node := value.producer(), *_MOVES) and node is not None and node.inputs[0] is not None:
        moves.insert(0, node)
        value = node.inputs[0]
    return moves, value


def _bounds(value: ir.Value) -> _Bounded:
    """The value before the Clips (and Max or Min with a constant) that produced it, with their bounds."""
    low, high = -math.inf, math.inf
    while (limits := _limits(value.producer())) is not None:
        value, least, most = limits
        low, high = max(low, least), min(high, most)
    return _Bounded(value, low, high)


def _limits(node: ir.Node | None) -> _Bounded | None:
    """The input and the bounds of a Clip, or of a Max or Min with a constant; None for any other node."""
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


def _clip(node: ir.Node, logit: _Bounded) -> ir.Value:
    output, graph = node.outputs[0], edit.graph_of(node)
    if math.isinf(logit.low) and math.isinf(logit.high):
        return logit.value
    ends: list[ir.Value | None] = []
    for tag, number in (("low", logit.low), ("high", logit.high)):
        array = np.asarray(number, np.float32)
        name = f"{output.name}/{tag}"
        ends.append(None if math.isinf(number) else edit.add_initializer(graph, array, name=name, source=output))
    shape = shape_of(output)
    return edit.insert(node, "Clip", [logit.value, *ends], source=output, replaces=[node], shape=shape)


def _both(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    left, right = node.inputs
    return None if left is None or right is None else (left, right)


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if is_op(node, op_type) else None
