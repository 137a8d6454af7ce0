"""Put back the Relu or Clip that another tool folded into a range.

Quantizers remove a Relu before a QuantizeLinear whose range starts at 0, and a Clip(0, 6) before one that
also ends at 6: the quantization itself then clips. Without its Q/DQ pair, or with another range, the tensor would no
longer be clipped. A restored operator never changes a result of the quantized model, because QuantizeLinear clips to
the same ends.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.model import edit
from dovetail.model.origin import derive, origin_of
from dovetail.pass_record import PassRecord, Site
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.qdq.params import is_dequantize, is_quantize, qparams_of, use_onnx_domain
from dovetail.qdq.value_ranges import ValueRange, represented, value_ranges

# Upper ends of the activations that networks use: Clip(0, 6) is Relu6, and Clip(0, 1) a hard sigmoid.
_UPPER_ENDS = (6.0, 1.0)
_RELU = ValueRange(0.0)


def restore_activations(model: ir.Model) -> PassRecord:
    """Insert a Relu or Clip before every QuantizeLinear whose range starts at 0, if its input can exceed that range.

    Inputs of the model are left as they are: nothing can have been folded into their range.
    """
    use_onnx_domain(model)
    infer_shapes(model)
    ranges = value_ranges(model.graph)
    changed: list[Site] = []
    for node in list(model.graph):
        if is_quantize(node) or is_dequantize(node) or edit.is_op(node, "Constant"):
            continue
        for value in node.outputs:
            folded: dict[ValueRange, list[ir.Node]] = {}
            for consumer, index in value.uses():
                if is_quantize(consumer) and index == 0:
                    activation = _folded(qparams_of(consumer), ranges.get(value, ValueRange()))
                    if activation is not None:
                        folded.setdefault(activation, []).append(consumer)
            for activation, quantizes in folded.items():
                where = origin_of(value).name
                operator = clip_before(quantizes, value, activation)
                changed.append(Site(where, f"{operator} restored after {node.op_type} {node.name!r}"))
    return PassRecord("restore_activations", tuple(changed))


def clip_before(quantizes: list[ir.Node], value: ir.Value, ends: ValueRange) -> str:
    """Let these QuantizeLinear nodes read a value through a Relu or Clip, and return its description.

    The new operator takes over the value's name where nothing else reads the value.
    """
    graph = edit.graph_of(quantizes[0])
    inputs: list[ir.Value | None] = [value]
    relu = ends == _RELU
    if not relu:
        for end, name in zip(ends, ("low", "high"), strict=True):
            array = np.asarray(end, np.float32)
            inputs.append(edit.add_initializer(graph, array, name=f"{value.name}/{name}", source=value))
    op_type, shape = "Relu" if relu else "Clip", edit.shape_of(value)
    clipped = edit.insert(
        quantizes[0], op_type, inputs, source=value, replaces=quantizes, shape=shape, dtype=value.dtype
    )
    node = clipped.producer()
    others = {reader for reader, _ in value.uses()} - {node, *quantizes}
    if node is None or others or value.is_graph_output() or value.producer() is None:
        for quantize in quantizes:
            quantize.replace_input_with(0, clipped)
    else:
        name = str(value.name)
        edit.replace_value(value, clipped)
        node.replace_input_with(0, value)
        value.name = edit.free_name(graph, f"{name}/unclipped")
        derive(value, clipped)
    return "Relu" if relu else f"Clip({ends.low:g}, {ends.high:g})"


def _folded(params: QParams, possible: ValueRange) -> ValueRange | None:
    """The ends of the activation that a range stands for; None if it does not start at 0 or clips nothing."""
    if not params.dtype.is_integer or params.axis is not None or int(params.zero_point) != params.dtype.grid.low:
        return None
    step, end = float(params.scale), represented(params).high
    high = next((bound for bound in _UPPER_ENDS if abs(end - bound) <= step / 2), None)
    if high is not None and possible.high > high + step:
        return ValueRange(0.0, high)
    return _RELU if possible.low < -step else None
