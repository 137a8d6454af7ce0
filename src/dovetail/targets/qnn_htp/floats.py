"""Verify tensors that are planned in float: they must not be quantized in the compiled graph, and must be float16.

In the dumped graph float tensors are float32; the compiler's log has the precision in which it compiles each operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.backend import Outcome, TensorReadBack, changed
from dovetail.edge import Edge
from dovetail.encoding import DType
from dovetail.model.edit import is_float
from dovetail.model.origin import origin_of
from dovetail.qdq.params import is_dequantize
from dovetail.storage import Plan
from dovetail.targets.qnn_htp.dump import MOVED, QnnGraph, QnnTensor

# Operators that only move data: the compiler merges and removes them.
_LAYOUT = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Split", "Slice", "Expand"}
# "Validating Op blocks.1.attn.proj/Add_out/Gemm with precision FP16" (onnxruntime-qnn 2.7.0); for an operator that only
# moves data the precision is OTHERS.
_VALIDATED = re.compile(r"Validating Op (.+?) with precision (\w+)")
_FLOAT16_PRECISION, _DATA_MOVEMENT = "FP16", "OTHERS"
# The graph compiler's own option: 1 if it computes float32 tensors in float16. The provider does not validate every
# operator on its own (an LSTM becomes one Lstm per step), and then the log has no precision for it.
_RELAXED = "Option: relaxed_precision_flag = 1"
# What ONNX Runtime appends to the name of a copy (onnxruntime 1.31).
_COPY = "/duplicated"


@dataclass(frozen=True, slots=True)
class LoggedPrecisions:
    """What the compiler's log says about precision: of operators, by name, and the dtype of float tensors."""

    operators: Mapping[str, str]
    float_dtype: DType

    @classmethod
    def read(cls, log: str) -> LoggedPrecisions:
        """Find both in a log."""
        return cls(dict(_VALIDATED.findall(log)), DType.F16 if _RELAXED in log else DType.F32)


@dataclass(frozen=True, slots=True)
class FloatReader:
    """Looks up float tensors in a dumped graph."""

    graph: QnnGraph
    logged: LoggedPrecisions

    def rows(self, emitted: ir.Model, plan: Plan) -> Iterator[TensorReadBack]:
        """Yield every tensor and every operand that is planned in float and has a consumer."""
        values = {v.name: v for v in (*emitted.graph.inputs, *(v for node in emitted.graph for v in node.outputs))}
        for name, choice in plan.tensors.items():
            value = values[name]
            used = value.uses() or value.is_graph_output()
            if choice.is_stored and not choice.storage.dtype.is_quantized and is_float(value) and used:
                outcome, detail = self._outcome(value, choice.storage.dtype)
                yield TensorReadBack(origin_of(value).name, outcome, detail, None, name)
        nodes = {node.name: node for node in emitted.graph}
        for edge, choice in plan.edges.items():
            operand = nodes[edge.node].inputs[edge.index]
            if not choice.storage.dtype.is_quantized and operand is not None:
                outcome, detail = self._outcome(operand, choice.storage.dtype, edge)
                yield TensorReadBack(origin_of(operand).name, outcome, detail, edge, operand.name or "")

    def _outcome(self, value: ir.Value, planned: DType, edge: Edge | None = None) -> tuple[Outcome, str]:
        producer = value.producer()
        tensor = self._named(value.name or "") or self._written_by(producer) or self._dequantized_for(edge, producer)
        op = "the producer" if producer is None else producer.op_type
        if tensor is not None and tensor.dtype is not None and tensor.dtype.is_quantized:
            return changed(planned, tensor.dtype, f"written by {op}")
        if tensor is not None:
            return self._computed_in(tensor, planned)
        if producer is not None and producer.op_type in _LAYOUT:
            return Outcome.ABSORBED, f"a {producer.op_type} in float, merged with its neighbors"
        return Outcome.NOT_FOUND, "not in the dumped graph"

    def _computed_in(self, tensor: QnnTensor, planned: DType) -> tuple[Outcome, str]:
        """Whether a float tensor has the planned dtype, judged by its producer and its consumers."""
        if planned is DType.F32 or tensor.dtype is planned:
            return Outcome.MATCHED, str(planned)
        neighbors = [node for node in self.graph.nodes if tensor.name in (*node.outputs, *node.inputs)]
        operators = self.logged.operators
        logged = {node.name: operators[node.name] for node in neighbors if node.name in operators}
        in_float16 = next((name for name, precision in logged.items() if precision == _FLOAT16_PRECISION), None)
        if in_float16 is not None:
            return Outcome.MATCHED, f"{planned}: the compiler compiled {in_float16} with precision {_FLOAT16_PRECISION}"
        if logged and set(logged.values()) == {_DATA_MOVEMENT}:
            return Outcome.MATCHED, "float, moved but not computed"
        if planned is self.logged.float_dtype:
            return Outcome.MATCHED, f"{planned}, in which the compiler computes every float tensor"
        return Outcome.NOT_FOUND, f"float, but the log does not show that it is computed in {planned}"

    def _named(self, name: str) -> QnnTensor | None:
        """The tensor of this name, or a copy of it: ONNX Runtime copies a DequantizeLinear for each consumer."""
        if name in self.graph.tensors:
            return self.graph.tensors[name]
        copies = (tensor for key, tensor in self.graph.tensors.items() if key.startswith(f"{name}{_COPY}"))
        return next(copies, None)

    def _written_by(self, producer: ir.Node | None) -> QnnTensor | None:
        """The output of the node with the producer's name, for a tensor whose name differs in the dump."""
        name = None if producer is None else producer.name
        node = next((n for n in self.graph.nodes if name in (n.name, MOVED.sub("", n.name))), None)
        tensors = self.graph.tensors
        return None if node is None else next((tensors[n] for n in node.outputs if n in tensors), None)

    def _dequantized_for(self, edge: Edge | None, producer: ir.Node | None) -> QnnTensor | None:
        """What the operator of an edge reads, if that is the quantized tensor, dequantized.

        Where ONNX Runtime moves a DequantizeLinear after a Transpose, the dump has neither its name nor its output's.
        """
        if edge is None or producer is None or not is_dequantize(producer) or (source := producer.inputs[0]) is None:
            return None
        nodes, tensors = self.graph.nodes, self.graph.tensors
        outputs = {
            name for node in nodes if node.type == "Dequantize" and source.name in node.inputs for name in node.outputs
        }
        readers = (node for node in nodes if edge.node in (node.name, MOVED.sub("", node.name)))
        return next((tensors[name] for node in readers for name in node.inputs if name in outputs), None)
