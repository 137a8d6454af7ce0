"""Write the addition of a constant as the subtraction of its negative, which is the same number in float."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import constant_of, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def constant_term(node: ir.Node) -> int | None:
    """Which of the two inputs of an Add is a constant; None if none or both are."""
    are_constant = [constant_of(value) is not None for value in node.inputs]
    return are_constant.index(True) if sum(are_constant) == 1 else None


def add_to_sub(model: ir.Model, applies: Callable[[ir.Node], bool] = lambda node: True) -> PassRecord:
    """Replace x + c by x - (-c) where ``applies`` is true for the Add."""
    changed: list[Site] = []
    for node in list(model.graph):
        index = constant_term(node) if is_op(node, "Add") and applies(node) else None
        array = None if index is None else constant_of(node.inputs[index])
        output = node.outputs[0]
        if index is None or array is None or not edit.is_float(output):
            continue
        source = node.inputs[index] or output
        name = edit.free_name(edit.graph_of(node), f"{source.name}/negative")
        negative = edit.add_initializer(edit.graph_of(node), -array, name=name, source=source)
        difference = edit.insert(
            node, "Sub", [node.inputs[1 - index], negative], source=output, replaces=[node], shape=shape_of(output)
        )
        where = origin_of(output).name
        edit.replace_value(output, difference)
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, "Add of a constant rewritten as Sub"))
    return PassRecord("add_to_sub", tuple(changed))
