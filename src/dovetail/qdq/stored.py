"""Where each planned storage stands in an emitted QDQ graph: the key to reading back what was compiled from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.qdq.emit import STORED
from dovetail.storage import Edge, Plan


@dataclass(frozen=True, slots=True)
class StoredValue:
    """One planned storage: the tensor (and edge) it is for, its integer value in the emitted graph, its numbers."""

    tensor: str
    edge: Edge | None
    name: str
    params: QParams
    group: str | None


def stored_values(emitted: ir.Model, plan: Plan) -> Iterator[StoredValue]:
    """Every quantized storage of the plan, tensors first, then edges, with its name in the emitted graph."""
    for tensor, choice in plan.tensors.items():
        if isinstance(choice.storage, QParams):
            io = plan.quantized_io and tensor in _boundary(emitted)
            yield StoredValue(tensor, None, tensor if io else STORED.format(tensor), choice.storage, choice.group)
    nodes = {node.name: node for node in emitted.graph}
    for edge, choice in plan.edges.items():
        if not isinstance(choice.storage, QParams):
            continue
        read = nodes[edge.node].inputs[edge.index]
        producer = None if read is None else read.producer()
        stored = None if producer is None else producer.inputs[0]
        if stored is None:
            raise ValueError(f"edge {edge} is planned, but the emitted graph has no DequantizeLinear there")
        yield StoredValue(stored.name or "", edge, stored.name or "", choice.storage, None)


def _boundary(emitted: ir.Model) -> set[str | None]:
    return {v.name for v in (*emitted.graph.inputs, *emitted.graph.outputs)}
