"""Remove operators that return their input unchanged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

# Float type -> the wider types that hold all of its values: a Cast there and back changes nothing.
_WIDER = {
    ir.DataType.FLOAT16: (ir.DataType.FLOAT, ir.DataType.DOUBLE),
    ir.DataType.BFLOAT16: (ir.DataType.FLOAT, ir.DataType.DOUBLE),
    ir.DataType.FLOAT: (ir.DataType.DOUBLE,),
}


def remove_noops(model: ir.Model) -> PassRecord:
    """Connect the consumers of a node that changes nothing to its input.

    Identity, Dropout, Cast to the same type (or to a wider one and back), Reshape, Transpose, Expand, Slice and Pad
    that change nothing, Concat, Sum, Max, Min of one input, arithmetic with zero and one, Where that always selects one
    side. The shape and the type must be known to stay the same.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in model.graph:
        kept = _kept_input(node)
        if kept is None:
            continue
        output = node.outputs[0]
        where = origin_of(output).name
        if len(node.outputs) > 1 and any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
            declined.append(Site(where, f"another output of the {node.op_type} is used"))
        elif output.is_graph_output() and (kept.producer() is None or kept.is_graph_output()):
            if node.op_type != "Identity":
                declined.append(
                    Site(where, "it is needed to give an input or another output the name of this graph output")
                )
        else:
            edit.replace_value(output, kept)
            edit.remove_dead(model.graph, [node])
            changed.append(Site(where, f"{node.op_type} removed: it changes nothing"))
    return PassRecord("remove_noops", tuple(changed), tuple(declined))


def _kept_input(node: ir.Node) -> ir.Value | None:
    """The input that the node's first output equals, or None."""
    test = _TESTS.get(node.op_type) if node.domain == "" else None
    if test is None or not node.inputs or node.inputs[0] is None:
        return None
    kept = test(node)
    if kept is None or node.op_type == "Identity":
        return kept
    output = node.outputs[0]
    same_shape = shape_of(kept) is not None and shape_of(kept) == shape_of(output)
    return kept if same_shape and kept.dtype is not None and kept.dtype == output.dtype else None


def _always(node: ir.Node) -> ir.Value | None:
    return node.inputs[0]


def _if_alone(node: ir.Node) -> ir.Value | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _dropout(node: ir.Node) -> ir.Value | None:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    return node.inputs[0] if training is None or edit.scalar_of(training) == 0 else None


def _cast(node: ir.Node) -> ir.Value | None:
    """The input of a Cast, or of the Cast before it if that one only widened the type."""
    value = node.inputs[0]
    first = value.producer() if value is not None else None
    if value is not None and value.dtype != node.outputs[0].dtype and edit.is_op(first, "Cast"):
        source = first.inputs[0] if first is not None else None
        if source is not None and source.dtype is not None and value.dtype in _WIDER.get(source.dtype, ()):
            return source
    return value


def _transpose(node: ir.Node) -> ir.Value | None:
    perm = attribute(node, "perm", None)
    return node.inputs[0] if perm is not None and list(perm) == sorted(perm) else None


def _slice(node: ir.Node) -> ir.Value | None:
    """A Slice that keeps the shape keeps every element in place, unless its step is negative."""
    steps = constant_of(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1)
    return node.inputs[0] if steps is not None and bool(np.all(steps > 0)) else None


def _pad(node: ir.Node) -> ir.Value | None:
    pads = constant_of(node.inputs[1])
    return node.inputs[0] if pads is not None and not pads.any() else None


def _where(node: ir.Node) -> ir.Value | None:
    """The side that a constant condition always selects."""
    condition = constant_of(node.inputs[0])
    if condition is None or condition.size == 0 or condition.all() != condition.any():
        return None
    return node.inputs[1 if condition.all() else 2]


def _with_constant(neutral: float, *, either_side: bool) -> Callable[[ir.Node], ir.Value | None]:
    def test(node: ir.Node) -> ir.Value | None:
        left, right = node.inputs
        if _is_all(right, neutral):
            return left
        return right if either_side and _is_all(left, neutral) else None

    return test


def _is_all(value: ir.Value | None, number: float) -> bool:
    array = constant_of(value)
    return array is not None and array.size > 0 and bool(np.all(array == number))


_TESTS: dict[str, Callable[[ir.Node], ir.Value | None]] = {
    "Identity": _always,
    "Dropout": _dropout,
    "Cast": _cast,
    "Reshape": _always,
    "Squeeze": _always,
    "Unsqueeze": _always,
    "Flatten": _always,
    "Expand": _always,
    "Transpose": _transpose,
    "Slice": _slice,
    "Pad": _pad,
    "Where": _where,
    "Split": _always,
    "Concat": _if_alone,
    "Sum": _if_alone,
    "Max": _if_alone,
    "Min": _if_alone,
    "Mean": _if_alone,
    "Add": _with_constant(0.0, either_side=True),
    "Sub": _with_constant(0.0, either_side=False),
    "Mul": _with_constant(1.0, either_side=True),
    "Div": _with_constant(1.0, either_side=False),
    "Pow": _with_constant(1.0, either_side=False),
}
