"""Select scores by a boolean mask instead of adding a large negative number that is computed from it.

``scores + (1 - mask) * -1e9`` and ``scores + Where(mask, 0, -inf)`` become ``Where(mask, scores, -1e9)``, whose number
``bound_sentinels`` can reduce. Adding a smaller number would not do: in a row that is masked entirely, -1e9 rounds all
scores away.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import is_op, scalar_of
from dovetail.model.origin import origin_of
from dovetail.model.place import named
from dovetail.model.sentinels import SENTINEL
from dovetail.pass_record import PassRecord, Site


@dataclass(slots=True)
class _Trace:
    """The way back from an added mask to its boolean: the data movement in between, last first, and the number."""

    moves: list[ir.Node] = field(default_factory=list)
    number: float | None = None
    inverted: bool = False
    condition: ir.Value | None = None
    keeps: bool = True
    why_not: str = ""


def select_masked(model: ir.Model) -> PassRecord:
    """Replace the Add by a Where at every Softmax whose mask is computed from a boolean tensor."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Add") or not _only_softmax(node.outputs[0]):
            continue
        for index, value in enumerate(node.inputs):
            trace = _traced(value)
            if value is None or trace.number is None or trace.number > -SENTINEL:
                continue
            where = origin_of(value).name
            if trace.condition is None or trace.why_not or _is_broadcast(trace):
                broadcast = "its condition has another shape than what is moved" if _is_broadcast(trace) else ""
                reason = trace.why_not or broadcast or "it is not computed from a boolean tensor"
                declined.append(Site(where, f"read by {named(node)}: {reason}"))
                continue
            _select(node, index, trace, trace.condition, trace.number)
            changed.append(Site(where, f"selected instead of added, read by {named(node)}"))
            break
    return PassRecord("select_masked", tuple(changed), tuple(declined))


def _is_broadcast(trace: _Trace) -> bool:
    """Whether the data movement after a mask cannot be applied to its condition, which has another shape."""
    if trace.condition is None or not trace.moves:
        return False
    return edit.shape_of(trace.condition) != edit.shape_of(trace.moves[-1].inputs[0])


def _only_softmax(value: ir.Value) -> bool:
    uses = value.uses()
    return bool(uses) and not value.is_graph_output() and all(is_op(node, "Softmax") for node, _ in uses)


def _traced(value: ir.Value | None) -> _Trace:
    trace = _Trace()
    while value is not None and (node := value.producer()) is not None:
        if is_op(node, *DATA_MOVEMENT_OPS) and len(node.outputs) == 1 and node.op_type != "MaxPool":
            trace.moves.append(node)
            value = node.inputs[0]
        elif is_op(node, "Mul") and trace.number is None and scalar_of(node.inputs[1]) is not None:
            trace.number = scalar_of(node.inputs[1])
            trace.why_not = "" if np.isfinite(trace.number or 0.0) else "zero times infinity is NaN"
            value = node.inputs[0]
        elif is_op(node, "Sub") and trace.number is not None and scalar_of(node.inputs[0]) == 1:
            trace.inverted = not trace.inverted
            value = node.inputs[1]
        elif is_op(node, "Cast") and trace.number is not None:
            source = node.inputs[0]
            is_boolean = source is not None and source.dtype is ir.DataType.BOOL
            trace.condition, trace.keeps = (source, trace.inverted) if is_boolean else (None, True)
            return trace
        elif is_op(node, "Where") and trace.number is None:
            return _branches(node, trace)
        else:
            return trace
    return trace


def _branches(node: ir.Node, trace: _Trace) -> _Trace:
    """A mask that a Where selects: one branch is zero, the other the number."""
    numbers = [scalar_of(value) for value in node.inputs[1:]]
    masking = [number for number in numbers if number is not None and number <= -SENTINEL]
    if len(masking) == 1:
        trace.number = masking[0]
        kept = numbers.index(masking[0]) == 1  # the condition keeps if the number is the second branch
        trace.why_not = "" if numbers[0 if kept else 1] == 0 else "its other branch is not zero"
        trace.condition, trace.keeps = node.inputs[0], kept
    return trace


def _select(node: ir.Node, index: int, trace: _Trace, condition: ir.Value, number: float) -> None:
    graph, mask, scores = edit.graph_of(node), node.inputs[index], node.inputs[1 - index]
    if mask is None or scores is None:
        raise ValueError(f"Add {node.name!r} has an empty input")
    for move in reversed(trace.moves):
        inputs = [condition, *move.inputs[1:]]
        condition = edit.insert(
            node,
            move.op_type,
            inputs,
            attributes=dict(move.attributes),
            source=move.outputs[0],
            replaces=[move],
            name=f"{move.outputs[0].name}/condition",
            shape=edit.shape_of(move.outputs[0]),
            dtype=ir.DataType.BOOL,
        )
    dtype = np.float32 if scores.dtype is None else scores.dtype.numpy()
    fill = edit.add_initializer(graph, np.asarray(number, dtype), name=f"{mask.name}/fill", source=mask)
    branches = [scores, fill] if trace.keeps else [fill, scores]
    output = node.outputs[0]
    shape = edit.shape_of(output)
    selected = edit.insert(node, "Where", [condition, *branches], source=output, replaces=[node], shape=shape)
    edit.replace_value(output, selected)
    edit.remove_dead(graph, [node])
