"""How many multiply-accumulate operations (MACs) a node computes."""

from __future__ import annotations

import math

import onnx_ir as ir

from dovetail.model.edit import attribute, is_op, shape_of


def macs_of(node: ir.Node) -> int:
    """The MACs of a convolution, a matrix multiplication or an Einsum; 0 for other operators and unknown shapes."""
    if not node.outputs or len(node.inputs) < 2:
        return 0
    output, left, right = shape_of(node.outputs[0]), shape_of(node.inputs[0]), shape_of(node.inputs[1])
    if output is None or left is None or right is None:
        return 0
    if is_op(node, "Conv"):
        return math.prod(output) * math.prod(right[1:])
    if is_op(node, "ConvTranspose"):
        return math.prod(left) * math.prod(right[1:])
    if is_op(node, "MatMul"):
        return math.prod(output) * left[-1]
    if is_op(node, "Gemm"):
        return math.prod(output) * left[0 if attribute(node, "transA", 0) else 1]
    return 0
