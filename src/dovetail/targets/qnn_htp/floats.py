"""Reading back what was planned in float: that nothing of it was taken for integers."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.backend import Outcome, ReadTensor
from dovetail.model.edit import is_float
from dovetail.model.origin import origin_of
from dovetail.storage import Plan
from dovetail.targets.qnn_htp.dump import MOVED, QnnGraph, QnnTensor

# Operators that only move numbers: the compiler merges and drops them.
_LAYOUT = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Split", "Slice", "Expand"}


def read_floats(emitted: ir.Model, graph: QnnGraph, plan: Plan) -> Iterator[ReadTensor]:
    """Every tensor and every operand that is planned in float and that something reads."""
    made = {v.name: v for v in (*emitted.graph.inputs, *(v for node in emitted.graph for v in node.outputs))}
    for name, choice in plan.tensors.items():
        value = made[name]
        read = value.uses() or value.is_graph_output()
        if choice.is_stored and not choice.storage.dtype.is_quantized and is_float(value) and read:
            outcome, detail = _found(value, graph)
            yield ReadTensor(origin_of(value).name, outcome, detail, None, name)
    nodes = {node.name: node for node in emitted.graph}
    for edge, choice in plan.edges.items():
        operand = nodes[edge.node].inputs[edge.index]
        if not choice.storage.dtype.is_quantized and operand is not None:
            outcome, detail = _found(operand, graph)
            yield ReadTensor(origin_of(operand).name, outcome, detail, edge, operand.name or "")


def _found(value: ir.Value, graph: QnnGraph) -> tuple[Outcome, str]:
    producer = value.producer()
    tensor = graph.tensors.get(value.name or "") or _written_by(producer, graph)
    op = "it" if producer is None else producer.op_type
    if tensor is not None and tensor.dtype is not None and tensor.dtype.is_quantized:
        return Outcome.CHANGED, f"{op} writes {tensor.dtype}, it was planned in float"
    if tensor is not None:
        return Outcome.MATCHED, "float"
    if producer is not None and producer.op_type in _LAYOUT:
        return Outcome.ABSORBED, f"a {producer.op_type} of floats, merged with its neighbours"
    return Outcome.NOT_FOUND, "not in the dumped graph"


def _written_by(producer: ir.Node | None, graph: QnnGraph) -> QnnTensor | None:
    """What the operator of that name writes, where its output has another name."""
    name = None if producer is None else producer.name
    node = next((n for n in graph.nodes if name in (n.name, MOVED.sub("", n.name))), None)
    return None if node is None else next((graph.tensors[n] for n in node.outputs if n in graph.tensors), None)
