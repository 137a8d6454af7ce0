"""SiLU, written as x * Sigmoid(x)."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model.edit import is_op


def gated_input(node: ir.Node) -> int | None:
    """The index of x in Mul(x, Sigmoid(x)); None if the node is not a SiLU."""
    if not is_op(node, "Mul"):
        return None
    for index in (0, 1):
        gate = node.inputs[1 - index]
        sigmoid = None if gate is None else gate.producer()
        if sigmoid is not None and is_op(sigmoid, "Sigmoid") and sigmoid.inputs[0] is node.inputs[index]:
            return index
    return None
