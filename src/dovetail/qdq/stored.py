"""Where each planned storage stands in an emitted QDQ graph: the key to reading back what was compiled from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.backend import Outcome, TensorReadBack
from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.model.origin import origin_of
from dovetail.qdq.params import STORED_TYPES, is_dequantize, is_quantize
from dovetail.storage import Plan


@dataclass(frozen=True, slots=True)
class StoredValue:
    """One planned storage: the tensor (and edge) it is for, its integer value in the emitted graph, its numbers.

    ``tensor`` is the caller's name of it, ``name`` that of the integers in the emitted graph.
    """

    tensor: str
    edge: Edge | None
    name: str
    params: QParams
    group: str | None

    def as_read(self, outcome: Outcome, detail: str) -> TensorReadBack:
        """How it came back from what was compiled."""
        return TensorReadBack(self.tensor, outcome, detail, self.edge, self.name)


def stored_values(emitted: ir.Model, plan: Plan) -> Iterator[StoredValue]:
    """Every quantized storage of the plan, tensors first, then edges, with its name in the emitted graph.

    A tensor that nothing reads is stored nowhere.
    """
    graph = emitted.graph
    values = {v.name: v for v in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    for tensor, choice in plan.tensors.items():
        stored = _integers(values[tensor]) if isinstance(choice.storage, QParams) else None
        if stored is not None and isinstance(choice.storage, QParams):
            yield StoredValue(origin_of(values[tensor]).name, None, str(stored.name), choice.storage, choice.group)
    nodes = {node.name: node for node in graph}
    for edge, choice in plan.edges.items():
        if not isinstance(choice.storage, QParams):
            continue
        read = nodes[edge.node].inputs[edge.index]
        producer = None if read is None else read.producer()
        stored = producer.inputs[0] if producer is not None and is_dequantize(producer) else None
        if stored is None:
            raise ValueError(f"edge {edge} is planned, but the emitted graph has no DequantizeLinear there")
        yield StoredValue(origin_of(stored).name, edge, str(stored.name), choice.storage, None)


def _integers(value: ir.Value) -> ir.Value | None:
    """The stored form of a planned tensor: itself at integer inputs and outputs, else beside the real values."""
    if value.dtype in STORED_TYPES:
        return value
    producer = value.producer()
    if producer is not None and is_dequantize(producer):
        return producer.inputs[0]
    return next((node.outputs[0] for node, _ in value.uses() if is_quantize(node)), None)
