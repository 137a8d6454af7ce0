"""Write the operator Mish as x * Tanh(Softplus(x)), for targets without a kernel for it."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def mish_to_tanh(model: ir.Model) -> PassRecord:
    """Replace every Mish."""
    changed: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Mish"):
            continue
        data, output = node.inputs[0], node.outputs[0]
        value = data
        for op_type in ("Softplus", "Tanh"):
            value = edit.insert(node, op_type, [value], source=output, replaces=[node], shape=shape_of(output))
        value = edit.insert(node, "Mul", [data, value], source=output, replaces=[node], shape=shape_of(output))
        changed.append(Site(origin_of(output).name, "Mish rewritten as x * Tanh(Softplus(x))"))
        edit.replace_value(output, value)
        edit.remove_dead(model.graph, [node])
    return PassRecord("mish_to_tanh", tuple(changed))
