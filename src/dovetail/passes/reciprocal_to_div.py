"""Write Reciprocal as a division, for targets that have an integer kernel for Div only."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def reciprocal_to_div(model: ir.Model) -> PassRecord:
    """Replace x * Reciprocal(r) by x / r, and Reciprocal(r) by 1 / r for every other consumer."""
    changed: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Reciprocal"):
            continue
        for multiply in [consumer for consumer, _ in node.outputs[0].uses() if _is_quotient(consumer, node)]:
            (factor,) = [value for value in multiply.inputs if value is not node.outputs[0]]
            changed.append(_divide(multiply, factor, node.inputs[0], [multiply, node], "x * Reciprocal(r)"))
        if node.outputs[0].uses() or node.outputs[0].is_graph_output():
            changed.append(_divide(node, _one(node), node.inputs[0], [node], "Reciprocal(r)"))
        edit.remove_dead(model.graph, [node])
    return PassRecord("reciprocal_to_div", tuple(changed))


def _is_quotient(consumer: ir.Node, reciprocal: ir.Node) -> bool:
    """Whether a consumer multiplies something else by the reciprocal."""
    return is_op(consumer, "Mul") and sum(value is reciprocal.outputs[0] for value in consumer.inputs) == 1


def _divide(
    node: ir.Node, dividend: ir.Value | None, divisor: ir.Value | None, replaces: list[ir.Node], before: str
) -> Site:
    output = node.outputs[0]
    quotient = edit.insert(node, "Div", [dividend, divisor], source=output, replaces=replaces, shape=shape_of(output))
    site = Site(origin_of(output).name, f"{before} rewritten as a division")
    edit.replace_value(output, quotient)
    edit.remove_dead(edit.graph_of(node), [node])
    return site


def _one(node: ir.Node) -> ir.Value:
    output = node.outputs[0]
    dtype = np.float32 if output.dtype is None else output.dtype.numpy()
    return edit.add_initializer(edit.graph_of(node), np.array(1, dtype), name=f"{output.name}/one", source=output)
