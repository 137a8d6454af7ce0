"""Check that what is planned in float runs in float in the optimized graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from dovetail.backend import Outcome, TensorReadBack, changed
from dovetail.encoding import DType
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.origin import each_value, origin_of
from dovetail.qdq.params import is_quantize
from dovetail.storage import Plan

# Integer operators whose names do not start with QLinear.
_INTEGER_OPS = frozenset(("ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "QGemm"))
# The suffix of a convolution that runs in the blocked layout; it is named by the node or by the output.
_BLOCKED_SUFFIX = "_nchwc"


def is_integer_op(node: ir.Node) -> bool:
    """Whether a node of an optimized graph computes in integers."""
    return node.op_type.startswith("QLinear") or node.op_type in _INTEGER_OPS


def runs_in_integers(node: ir.Node) -> tuple[Outcome, str]:
    """The outcome of something that is planned in float and that an integer operator computes."""
    return changed(DType.F32, "integers", f"it runs as {node.op_type}")


def float_rows(
    emitted: ir.Model, optimized: ir.Model, nodes: Mapping[str, ir.Node], plan: Plan
) -> Iterator[TensorReadBack]:
    """Yield every tensor and edge that was requested in float; ``nodes``: those of the optimized graph, by name."""
    values = {value.name: value for value in each_value(emitted.graph)}
    kept = {value.name: value for value in each_value(optimized.graph)}
    for name, choice in plan.tensors.items():
        value = values[name]
        producer = value.producer()
        if choice.is_requested_float and producer is not None and (value.uses() or value.is_graph_output()):
            outcome, detail = _computed(producer, kept, nodes)
            yield TensorReadBack(origin_of(value).name, outcome, detail, None, name)
    emitted_nodes = {node.name: node for node in emitted.graph}
    for edge, choice in plan.edges.items():
        operand = emitted_nodes[edge.node].inputs[edge.index]
        if choice.is_requested_float and operand is not None:
            outcome, detail = _computed(emitted_nodes[edge.node], kept, nodes)
            yield TensorReadBack(origin_of(operand).name, outcome, detail, edge, str(operand.name))


def _computed(node: ir.Node, kept: Mapping[str | None, ir.Value], nodes: Mapping[str, ir.Node]) -> tuple[Outcome, str]:
    """How the optimized graph computes a node of the emitted graph."""
    running = _running(node, kept, nodes)
    if running is not None and is_integer_op(running):
        return runs_in_integers(running)
    if running is not None:
        return Outcome.MATCHED, f"computed in float by {running.op_type}"
    if node.op_type in DATA_MOVEMENT_OPS:
        return Outcome.ABSORBED, f"a {node.op_type}, which only moves data"
    consumers = [consumer for output in node.outputs for consumer, _ in output.uses()]
    into = [running for consumer in consumers if (running := _into(consumer, kept, nodes)) is not None]
    if in_integers := next((running for running in into if is_integer_op(running)), None):
        return runs_in_integers(in_integers)
    if into:
        return Outcome.ABSORBED, f"fused into {into[0].op_type}, which computes in float"
    return Outcome.NOT_FOUND, "no operator of the optimized graph computes it"


def _into(consumer: ir.Node, kept: Mapping[str | None, ir.Value], nodes: Mapping[str, ir.Node]) -> ir.Node | None:
    """The node of the optimized graph that a node was fused into, found by its consumer."""
    running = _running(consumer, kept, nodes)
    if running is not None and is_quantize(running) and running.inputs[0] is not None:
        return running.inputs[0].producer()
    return running


def _running(node: ir.Node, kept: Mapping[str | None, ir.Value], nodes: Mapping[str, ir.Node]) -> ir.Node | None:
    """The node of the optimized graph that has the name of a node, or that writes one of its outputs."""
    names = [node.name or "", *(f"{name}{_BLOCKED_SUFFIX}" for name in (node.name, *(v.name for v in node.outputs)))]
    named = next((nodes[name] for name in names if name in nodes), None)
    written = [kept[output.name].producer() for output in node.outputs if output.name in kept]
    return named or next(iter(written), None)
