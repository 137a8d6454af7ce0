"""Put back the Relu or Clip that another tool folded into a range.

Quantizers remove a Relu in front of a QuantizeLinear whose range starts at 0, and a Clip(0, 6) in front of one that
also ends at 6: the quantization itself then clips. Without its Q/DQ pair, or with another range, the tensor would no
longer be clipped. A restored operator never changes a result of the quantized model, because QuantizeLinear clips to
the same ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.model import edit
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.qdq.params import is_dequantize, is_quantize, qparams_of, use_onnx_domain
from dovetail.qdq.value_ranges import ValueRange, represented, value_ranges

# Upper ends of the activations that networks use: Clip(0, 6) is Relu6, and Clip(0, 1) a hard sigmoid.
_UPPER_ENDS = (6.0, 1.0)


@dataclass(frozen=True, slots=True)
class _Activation:
    """A folded activation: Relu, or Clip if it has an upper end."""

    high: float | None = None

    def __str__(self) -> str:
        return "Relu" if self.high is None else f"Clip(0, {self.high:g})"


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
            folded: dict[_Activation, list[ir.Node]] = {}
            for consumer, index in value.uses():
                if is_quantize(consumer) and index == 0:
                    activation = _folded(qparams_of(consumer), ranges.get(value, ValueRange()))
                    if activation is not None:
                        folded.setdefault(activation, []).append(consumer)
            for activation, quantizes in folded.items():
                _restore(model.graph, value, activation, quantizes)
                changed.append(Site(origin_of(value).name, f"{activation} restored after {node.op_type} {node.name!r}"))
    return PassRecord("restore_activations", tuple(changed))


def _folded(params: QParams, possible: ValueRange) -> _Activation | None:
    """The activation that a range stands for; None if it does not start at 0 or clips nothing."""
    if not params.dtype.is_integer or params.axis is not None or int(params.zero_point) != params.dtype.grid.low:
        return None
    step, end = float(params.scale), represented(params).high
    high = next((bound for bound in _UPPER_ENDS if abs(end - bound) <= step / 2), None)
    if high is not None and possible.high > high + step:
        return _Activation(high)
    return _Activation() if possible.low < -step else None


def _restore(graph: ir.Graph, value: ir.Value, activation: _Activation, quantizes: list[ir.Node]) -> None:
    """Let these QuantizeLinear nodes read the value through the activation, which takes over the value's name where
    nothing else reads it."""
    inputs: list[ir.Value | None] = [value]
    if activation.high is not None:
        for end, name in ((0.0, "low"), (activation.high, "high")):
            array = np.asarray(end, np.float32)
            inputs.append(edit.add_initializer(graph, array, name=f"{value.name}/{name}", source=value))
    op_type = "Relu" if activation.high is None else "Clip"
    clipped = edit.insert(
        quantizes[0], op_type, inputs, source=value, replaces=quantizes, shape=edit.shape_of(value), dtype=value.dtype
    )
    readers = {node for node, _ in value.uses()} - {clipped.producer()}
    if readers == set(quantizes) and not value.is_graph_output():
        name = str(value.name)
        edit.replace_value(value, clipped)
        clipped_node = clipped.producer()
        if clipped_node is not None:
            clipped_node.replace_input_with(0, value)
        value.name = edit.free_name(graph, f"{name}/unclipped")
    else:
        for quantize in quantizes:
            quantize.replace_input_with(0, clipped)
