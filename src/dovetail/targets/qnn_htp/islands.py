"""Keep a single float operator between quantized ones in float, by inserting Cast nodes after it.

In a QDQ graph ``Dequantize -> op -> Quantize`` means an integer operator, so the provider silently compiles a float
island of one operator in integers. Two Casts, to float16 and back, before the Quantize prevent this (onnxruntime-qnn
2.7.0, soc 43: Log is compiled in float and agrees with the simulation to 72 dB); in a float16 island they lose nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.model.edit import constant_of, insert, is_float, shape_of
from dovetail.qdq.params import is_dequantize, is_quantize
from dovetail.storage import Plan


def hold_islands(emitted: ir.Model, plan: Plan) -> None:
    """Insert the Casts after every operator that is planned in float and would be compiled in integers."""
    for node in lone_islands(emitted, plan):
        for output in node.outputs:
            uses = output.uses()
            if not uses or not is_float(output):  # integer outputs such as indices need no Cast
                continue
            first = min((consumer for consumer, _ in uses), key=list(emitted.graph).index)
            shape = shape_of(output)
            half = insert(
                first,
                "Cast",
                [output],
                attributes={"to": int(ir.DataType.FLOAT16)},
                source=output,
                replaces=[],
                shape=shape,
                dtype=ir.DataType.FLOAT16,
            )
            back = insert(
                first,
                "Cast",
                [half],
                attributes={"to": int(ir.DataType.FLOAT)},
                source=output,
                replaces=[],
                shape=shape,
            )
            for consumer, index in uses:
                consumer.replace_input_with(index, back)


def lone_islands(emitted: ir.Model, plan: Plan) -> Iterator[ir.Node]:
    """Yield operators planned in float whose inputs all come from Dequantize and whose outputs all go to Quantize."""
    for node in list(emitted.graph):
        outputs = [v for v in node.outputs if is_float(v)]
        if is_dequantize(node) or is_quantize(node) or not outputs:
            continue
        inputs = [v for v in node.inputs if v is not None and is_float(v) and constant_of(v) is None]
        dequantized = bool(inputs) and all(is_dequantize(v.producer()) for v in inputs)
        if dequantized and all(_is_quantized_again(v, plan) for v in outputs):
            yield node


def _is_quantized_again(value: ir.Value, plan: Plan) -> bool:
    """Whether a tensor is planned in float and all of its consumers are Quantize nodes."""
    choice = plan.tensors.get(value.name or "")
    if choice is None or choice.storage.dtype.is_quantized or value.is_graph_output():
        return False
    return all(is_quantize(consumer) for consumer, _ in value.uses())
