"""Dynamic quantization in the emitted graph: every row of a linear layer's input gets its own qparams at run time.

XNNPACK quantizes row by row, whatever the graph says. The emitted graph has an ONNX function that does exactly that, so
that the simulation computes the same values.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from dovetail.model import origin
from dovetail.model.edit import constant_of, free_name, is_op, sole_consumer
from dovetail.qdq.params import is_dequantize, is_quantize

DOMAIN, ROWS = "dovetail", "DynamicRows"
_LINEAR = ("Gemm", "MatMul")
# The scale and zero point of torch's choose_qparams_per_token_asymmetric, which XNNPACK uses.
_BODY = f"""
<opset_import: ["" : 18], domain: "{DOMAIN}">
{ROWS} (x) => (y) {{
    low_end = Constant <value = float {{-128}}> ()
    high_end = Constant <value = float {{127}}> ()
    steps = Constant <value = float {{255}}> ()
    zero = Constant <value = float {{0}}> ()
    least = Constant <value = float {{1.1920929e-07}}> ()
    axis = Constant <value = int64[1] {{-1}}> ()
    lowest = ReduceMin (x, axis)
    highest = ReduceMax (x, axis)
    low = Min (lowest, zero)
    high = Max (highest, zero)
    width = Sub (high, low)
    exact = Div (width, steps)
    scale = Max (exact, least)
    low_steps = Div (low, scale)
    high_steps = Div (high, scale)
    low_error = Add (low_end, low_steps)
    high_error = Add (high_end, high_steps)
    error = Add (low_error, high_error)
    by_low = Greater (error, zero)
    from_low = Sub (low_end, low_steps)
    from_high = Sub (high_end, high_steps)
    point = Where (by_low, from_low, from_high)
    bounded = Clip (point, low_end, high_end)
    zero_point = Round (bounded)
    scaled = Div (x, scale)
    rounded = Round (scaled)
    moved = Add (rounded, zero_point)
    stored = Clip (moved, low_end, high_end)
    centred = Sub (stored, zero_point)
    y = Mul (centred, scale)
}}
"""


def insert_dynamic(emitted: ir.Model) -> None:
    """Put the function before every linear layer whose weight is quantized and whose input is float."""
    graph = emitted.graph
    for node in [node for node in graph if _is_dynamic(node)]:
        source = node.inputs[0]
        if source is None:
            raise TypeError(f"{node.name!r} has no input 0")
        name = free_name(graph, f"{source.name}__rows")
        rows = ir.node(ROWS, [source], domain=DOMAIN, name=name)
        output = rows.outputs[0]
        output.name, output.type, output.shape = name, source.type, source.shape
        origin.derive(output, source)
        graph.insert_before(node, rows)
        node.replace_input_with(0, output)
        emitted.opset_imports[DOMAIN] = 1
    if DOMAIN in emitted.opset_imports:
        function = ir.from_proto(onnx.parser.parse_function(_BODY))
        emitted.functions[function.identifier()] = function


def _is_dynamic(node: ir.Node) -> bool:
    if node.op_type not in _LINEAR or node.inputs[0] is None or node.inputs[1] is None:
        return False
    source, weight = node.inputs[0].producer(), node.inputs[1].producer()
    if weight is None or not is_dequantize(weight) or constant_of(weight.inputs[0]) is None:
        return False
    return source is None or not is_dequantize(source) or not _output_is_quantized(node)


def _output_is_quantized(node: ir.Node) -> bool:
    """Whether the only consumer of a layer, or of the Relu after it, is a QuantizeLinear."""
    consumer = sole_consumer(node.outputs[0])
    if consumer is not None and is_op(consumer, "Relu"):
        consumer = sole_consumer(consumer.outputs[0])
    return is_quantize(consumer)


def is_rows(node: ir.Node) -> bool:
    """Whether a node calls the function."""
    return node.domain == DOMAIN and node.op_type == ROWS
