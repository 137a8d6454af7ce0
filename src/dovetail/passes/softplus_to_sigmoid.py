"""Write Softplus, and the Mish that contains it, with Sigmoid: its values stay between 0 and 1."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def softplus_to_sigmoid(model: ir.Model) -> PassRecord:
    """Replace the gate Tanh(Softplus(x)) and every other Softplus; other consumers of a Softplus still read it.

    With p = Sigmoid(-x)^2, Tanh(Softplus(x)) = (1 - p) / (1 + p). Softplus(x) = Relu(x) - Log(Sigmoid(|x|)).
    """
    changed: list[Site] = []
    for node in list(model.graph):
        softplus = _softplus_before(node)
        if softplus is not None:
            changed.append(Site(origin_of(node.outputs[0]).name, "Tanh of Softplus rewritten with Sigmoid"))
            _replace(node, _gate(node, softplus), [node, softplus])
    for node in list(model.graph):
        if is_op(node, "Softplus"):
            changed.append(Site(origin_of(node.outputs[0]).name, "Softplus rewritten with Sigmoid"))
            _replace(node, _softplus(node), [node])
    return PassRecord("softplus_to_sigmoid", tuple(changed))


def _softplus_before(node: ir.Node) -> ir.Node | None:
    """The Softplus whose output a Tanh reads."""
    if not is_op(node, "Tanh") or node.inputs[0] is None:
        return None
    producer = node.inputs[0].producer()
    return producer if producer is not None and is_op(producer, "Softplus") else None


def _replace(node: ir.Node, value: ir.Value, replaced: list[ir.Node]) -> None:
    edit.replace_value(node.outputs[0], value)
    edit.remove_dead(edit.graph_of(node), replaced)


def _gate(tanh: ir.Node, softplus: ir.Node) -> ir.Value:
    replaces = [tanh, softplus]
    one = _one(tanh)
    complement = _insert(tanh, "Sigmoid", [_insert(tanh, "Neg", [softplus.inputs[0]], replaces)], replaces)
    square = _insert(tanh, "Mul", [complement, complement], replaces)
    numerator = _insert(tanh, "Sub", [one, square], replaces)
    return _insert(tanh, "Div", [numerator, _insert(tanh, "Add", [square, one], replaces)], replaces)


def _softplus(node: ir.Node) -> ir.Value:
    sigmoid = _insert(node, "Sigmoid", [_insert(node, "Abs", [node.inputs[0]], [node])], [node])
    rectified = _insert(node, "Relu", [node.inputs[0]], [node])
    return _insert(node, "Sub", [rectified, _insert(node, "Log", [sigmoid], [node])], [node])


def _insert(before: ir.Node, op_type: str, inputs: list[ir.Value | None], replaces: list[ir.Node]) -> ir.Value:
    output = before.outputs[0]
    return edit.insert(before, op_type, inputs, source=output, replaces=replaces, shape=shape_of(output))


def _one(node: ir.Node) -> ir.Value:
    output = node.outputs[0]
    dtype = np.float32 if output.dtype is None else output.dtype.numpy()
    return edit.add_initializer(edit.graph_of(node), np.array(1, dtype), name=f"{output.name}/one", source=output)
