"""Keep an island of a single operator (float, between quantized operators) in float, by Casts after or before it.

In a QDQ graph ``Dequantize -> op -> Quantize`` means an integer operator, so the provider silently compiles a float
island of one operator in integers. Two Casts, to float16 and back, before the Quantize prevent this (onnxruntime-qnn
2.7.0, soc 43: Log is compiled in float and agrees with the simulation to 72 dB); in a float16 island they lose nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.model.edit import constant_of, insert, is_float, is_op, shape_of, sole_consumer
from dovetail.qdq.params import is_dequantize, is_quantize
from dovetail.storage import Plan

# Linear layers, and the activations after them, that ONNX Runtime's WeightBiasQuantization takes for one quantized
# operator (onnxruntime 1.31.1).
_LAYERS = ("Conv", "ConvTranspose", "Gemm")
_FUSED = ("Clip", "Relu")


def insert_casts_around_islands(emitted: ir.Model, plan: Plan) -> None:
    """Insert the Casts at every operator that is planned in float and would be compiled in integers."""
    for node in list(_grouped_by_inputs(emitted, plan)):
        operand = node.inputs[0]
        if operand is not None:
            node.replace_input_with(0, _through_float16(node, operand))
    for node in lone_islands(emitted, plan):
        for output in node.outputs:
            uses = output.uses()
            if not uses or not is_float(output):  # integer outputs such as indices need no Cast
                continue
            first = min((consumer for consumer, _ in uses), key=list(emitted.graph).index)
            back = _through_float16(first, output)
            for consumer, index in uses:
                consumer.replace_input_with(index, back)


def _through_float16(before: ir.Node, value: ir.Value) -> ir.Value:
    """Insert a Cast to float16 and one back; returns the value after them."""
    for dtype in (ir.DataType.FLOAT16, ir.DataType.FLOAT):
        value = insert(
            before,
            "Cast",
            [value],
            attributes={"to": int(dtype)},
            source=value,
            replaces=[],
            shape=shape_of(value),
            dtype=dtype,
        )
    return value


def _grouped_by_inputs(emitted: ir.Model, plan: Plan) -> Iterator[ir.Node]:
    """Yield MatMuls that are planned in float and whose operands are both dequantized.

    The two DequantizeLinear inputs alone make the provider use integer kernels, even if no QuantizeLinear follows
    (onnxruntime-qnn 2.7.0): a transposed MatMul (Einsum) is then rejected (``Requested I/O datatype set:
    UFIXED_POINT_16, UFIXED_POINT_16, FLOAT_32``), and a MatMul's second operand is converted to 8 bit.
    """
    for node in emitted.graph:
        if node.op_type not in ("MatMul", "Einsum") or not all(is_dequantize(_producer(v)) for v in node.inputs):
            continue
        choice = plan.tensors.get(node.outputs[0].name or "")
        if choice is not None and not choice.storage.dtype.is_quantized:
            yield node


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def lone_islands(emitted: ir.Model, plan: Plan) -> Iterator[ir.Node]:
    """Yield operators planned in float whose inputs all come from Dequantize and whose outputs all go to Quantize.

    Also the activation after such a linear layer: ONNX Runtime then quantizes the layer's weights itself.
    """
    for node in list(emitted.graph):
        outputs = [v for v in node.outputs if is_float(v)]
        if is_dequantize(node) or is_quantize(node) or not outputs:
            continue
        first = _fused_layer(node) or node
        if _has_dequantized_inputs(first) and all(_is_quantized_again(v, plan) for v in outputs):
            yield node


def _fused_layer(node: ir.Node) -> ir.Node | None:
    """The linear layer that only this activation reads; None for other operators."""
    layer = node.inputs[0].producer() if is_op(node, *_FUSED) and node.inputs[0] is not None else None
    is_read_here = layer is not None and is_op(layer, *_LAYERS) and sole_consumer(layer.outputs[0]) is node
    return layer if is_read_here else None


def _has_dequantized_inputs(node: ir.Node) -> bool:
    inputs = [v for v in node.inputs if v is not None and is_float(v) and constant_of(v) is None]
    return bool(inputs) and all(is_dequantize(v.producer()) for v in inputs)


def _is_quantized_again(value: ir.Value, plan: Plan) -> bool:
    """Whether a tensor is planned in float and all of its consumers are Quantize nodes."""
    choice = plan.tensors.get(value.name or "")
    if choice is None or choice.storage.dtype.is_quantized or value.is_graph_output():
        return False
    return all(is_quantize(consumer) for consumer, _ in value.uses())
