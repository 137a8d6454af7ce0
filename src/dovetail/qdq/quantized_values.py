"""The quantized values of a plan in an emitted QDQ graph, by name: used to read back the compiled model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.backend import Outcome, TensorReadBack
from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.model.origin import origin_of
from dovetail.qdq.params import QUANTIZED_TYPES, is_dequantize, is_quantize
from dovetail.storage import Plan


@dataclass(frozen=True, slots=True)
class QuantizedValue:
    """One quantized value of a plan: its tensor (and edge), its name in the emitted graph, and its qparams.

    ``tensor``: the original name. ``name``: the name of the quantized value in the emitted graph.
    """

    tensor: str
    edge: Edge | None
    name: str
    params: QParams
    group: str | None

    def as_read(self, outcome: Outcome, detail: str) -> TensorReadBack:
        """The read-back row of this value."""
        return TensorReadBack(self.tensor, outcome, detail, self.edge, self.name)


def quantized_values(emitted: ir.Model, plan: Plan) -> Iterator[QuantizedValue]:
    """Every quantized value of the plan, tensors first, then edges, with its name in the emitted graph.

    A tensor without consumers is not quantized in the emitted graph and is left out.
    """
    graph = emitted.graph
    values = {v.name: v for v in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    for tensor, choice in plan.tensors.items():
        quantized = _quantized(values[tensor]) if isinstance(choice.storage, QParams) else None
        if quantized is not None and isinstance(choice.storage, QParams):
            yield QuantizedValue(
                origin_of(values[tensor]).name, None, str(quantized.name), choice.storage, choice.group
            )
    nodes = {node.name: node for node in graph}
    for edge, choice in plan.edges.items():
        if not isinstance(choice.storage, QParams):
            continue
        operand = nodes[edge.node].inputs[edge.index]
        producer = None if operand is None else operand.producer()
        quantized = producer.inputs[0] if producer is not None and is_dequantize(producer) else None
        if quantized is None:
            raise ValueError(f"the plan quantizes edge {edge}, but the emitted graph has no DequantizeLinear there")
        yield QuantizedValue(origin_of(quantized).name, edge, str(quantized.name), choice.storage, None)


def _quantized(value: ir.Value) -> ir.Value | None:
    """The quantized value of a planned tensor: itself if it is an integer input or output, else the output of its Q."""
    if value.dtype in QUANTIZED_TYPES:
        return value
    producer = value.producer()
    if producer is not None and is_dequantize(producer):
        return producer.inputs[0]
    return next((node.outputs[0] for node, _ in value.uses() if is_quantize(node)), None)
