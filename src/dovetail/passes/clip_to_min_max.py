"""Write Clip as Max and Min, with Relu in place of Max if the lower bound is zero."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import is_op, scalar_of, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def clip_to_min_max(model: ir.Model, applies: Callable[[ir.Node], bool] = lambda node: True) -> PassRecord:
    """Rewrite every Clip for which ``applies`` is true; a bound that is left out is left out."""
    changed: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Clip") or not applies(node):
            continue
        output = node.outputs[0]
        low, high = (node.inputs[index] if len(node.inputs) > index else None for index in (1, 2))
        value = node.inputs[0]
        if low is not None and scalar_of(low) == 0.0:
            value = _insert(node, "Relu", [value])
        elif low is not None:
            value = _insert(node, "Max", [value, low])
        if high is not None:
            value = _insert(node, "Min", [value, high])
        if value is None or value is node.inputs[0]:
            continue
        changed.append(Site(origin_of(output).name, "Clip rewritten as Max and Min"))
        edit.replace_value(output, value)
        edit.remove_dead(model.graph, [node])
    return PassRecord("clip_to_min_max", tuple(changed))


def _insert(node: ir.Node, op_type: str, inputs: list[ir.Value | None]) -> ir.Value:
    output = node.outputs[0]
    return edit.insert(node, op_type, inputs, source=output, replaces=[node], shape=shape_of(output))
