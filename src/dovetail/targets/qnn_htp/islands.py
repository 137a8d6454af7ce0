"""Keeping a float operator float: alone between two conversions, the provider takes it for an integer one.

``Dequantize -> op -> Quantize`` is how a QDQ graph says "integer operator", so an island of one operator is compiled in
integers, without a word. Two casts, to float16 and back, in front of the Quantize tell them apart (onnxruntime-qnn
2.7.0, soc 43: Log compiled as float, 72 dB from the simulation); a float16 island loses nothing by them.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.model.edit import constant_of, insert, is_float, shape_of
from dovetail.qdq.params import is_dequantize, is_quantize
from dovetail.storage import Plan


def hold_islands(emitted: ir.Model, plan: Plan) -> None:
    """Put the casts behind every operator that is planned in float and would be taken for an integer one."""
    for node in lone_islands(emitted, plan):
        for output in node.outputs:
            readers = output.uses()
            if not readers or not is_float(output):  # indices stay whole
                continue
            first = min((reader for reader, _ in readers), key=list(emitted.graph).index)
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
            for reader, index in readers:
                reader.replace_input_with(index, back)


def lone_islands(emitted: ir.Model, plan: Plan) -> Iterator[ir.Node]:
    """Operators planned in float whose inputs all come from Dequantize and whose outputs all go to Quantize."""
    for node in list(emitted.graph):
        outputs = [v for v in node.outputs if is_float(v)]
        if is_dequantize(node) or is_quantize(node) or not outputs:
            continue
        fed = [v for v in node.inputs if v is not None and is_float(v) and constant_of(v) is None]
        if fed and all(is_dequantize(v.producer()) for v in fed) and all(_leaves(v, plan) for v in outputs):
            yield node


def _leaves(value: ir.Value, plan: Plan) -> bool:
    """Whether a value is planned in float and only ever read into integers."""
    choice = plan.tensors.get(value.name or "")
    if choice is None or choice.storage.dtype.is_quantized or value.is_graph_output():
        return False
    return all(is_quantize(reader) for reader, _ in value.uses())
