"""Keep operators that are planned in float from being fused into integer operators.

ONNX Runtime fuses ``DequantizeLinear -> op -> QuantizeLinear`` into an integer operator, and a MatMul after two
DequantizeLinear even without the QuantizeLinear. Two Casts in between, to float64 and back, prevent this; they change
no value, and ONNX Runtime removes them after that fusion (onnxruntime 1.31.1, optimized graphs).
"""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model.edit import insert, shape_of
from dovetail.qdq.params import is_dequantize
from dovetail.storage import Plan


def insert_casts_around_islands(emitted: ir.Model, plan: Plan) -> None:
    """Insert the Casts on every edge on which the plan has a dequantized tensor in float."""
    nodes = {node.name: node for node in emitted.graph}
    for edge, choice in plan.edges.items():
        node = nodes[edge.node]
        operand = node.inputs[edge.index]
        if choice.storage.dtype.is_quantized or operand is None or not is_dequantize(operand.producer()):
            continue
        double = _cast(node, operand, operand, ir.DataType.DOUBLE)
        node.replace_input_with(edge.index, _cast(node, double, operand, ir.DataType.FLOAT))


def _cast(before: ir.Node, value: ir.Value, source: ir.Value, dtype: ir.DataType) -> ir.Value:
    attributes = {"to": int(dtype)}
    shape = shape_of(source)
    return insert(before, "Cast", [value], attributes=attributes, source=source, replaces=[], shape=shape, dtype=dtype)
