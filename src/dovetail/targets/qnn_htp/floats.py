"""Reading back what was planned in float: that nothing of it was taken for integers, and that it is float16.

In the dumped graph float tensors are float32; the compiler says in its log in which precision it took each operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.backend import Outcome, TensorReadBack
from dovetail.encoding import DType
from dovetail.model.edit import is_float
from dovetail.model.origin import origin_of
from dovetail.storage import Plan
from dovetail.targets.qnn_htp.dump import MOVED, QnnGraph, QnnTensor

# Operators that only move numbers: the compiler merges and drops them.
_LAYOUT = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Split", "Slice", "Expand"}
# "Validating Op blocks.1.attn.proj/Add_out/Gemm with precision FP16" (onnxruntime-qnn 2.7.0); of an operator that only
# moves numbers it says OTHERS.
_VALIDATED = re.compile(r"Validating Op (.+?) with precision (\w+)")
_IN_FLOAT16, _MOVED_ONLY = "FP16", "OTHERS"


@dataclass(frozen=True, slots=True)
class FloatReader:
    """Looks up float tensors in a dumped graph, beside what the compiler's log says of its operators."""

    graph: QnnGraph
    precisions: Mapping[str, str]

    def rows(self, emitted: ir.Model, plan: Plan) -> Iterator[TensorReadBack]:
        """Every tensor and every operand that is planned in float and that something reads."""
        made = {v.name: v for v in (*emitted.graph.inputs, *(v for node in emitted.graph for v in node.outputs))}
        for name, choice in plan.tensors.items():
            value = made[name]
            read = value.uses() or value.is_graph_output()
            if choice.is_stored and not choice.storage.dtype.is_quantized and is_float(value) and read:
                outcome, detail = self._found(value, choice.storage.dtype)
                yield TensorReadBack(origin_of(value).name, outcome, detail, None, name)
        nodes = {node.name: node for node in emitted.graph}
        for edge, choice in plan.edges.items():
            operand = nodes[edge.node].inputs[edge.index]
            if not choice.storage.dtype.is_quantized and operand is not None:
                outcome, detail = self._found(operand, choice.storage.dtype)
                yield TensorReadBack(origin_of(operand).name, outcome, detail, edge, operand.name or "")

    def _found(self, value: ir.Value, planned: DType) -> tuple[Outcome, str]:
        producer = value.producer()
        tensor = self.graph.tensors.get(value.name or "") or self._written_by(producer)
        op = "it" if producer is None else producer.op_type
        if tensor is not None and tensor.dtype is not None and tensor.dtype.is_quantized:
            return Outcome.CHANGED, f"{op} writes {tensor.dtype}, it was planned in float"
        if tensor is not None:
            return self._computed(tensor, planned)
        if producer is not None and producer.op_type in _LAYOUT:
            return Outcome.ABSORBED, f"a {producer.op_type} of floats, merged with its neighbours"
        return Outcome.NOT_FOUND, "not in the dumped graph"

    def _computed(self, tensor: QnnTensor, planned: DType) -> tuple[Outcome, str]:
        """Whether a float tensor is of the type that was planned, by the operators that write or read it."""
        if planned is DType.F32 or tensor.dtype is planned:
            return Outcome.MATCHED, str(planned)
        around = [node for node in self.graph.nodes if tensor.name in (*node.outputs, *node.inputs)]
        said = {node.name: self.precisions[node.name] for node in around if node.name in self.precisions}
        computing = next((name for name, precision in said.items() if precision == _IN_FLOAT16), None)
        if computing is not None:
            return Outcome.MATCHED, f"{planned}: the compiler took {computing} with precision {_IN_FLOAT16}"
        if said and set(said.values()) == {_MOVED_ONLY}:
            return Outcome.MATCHED, "float, which is only moved here"
        return Outcome.NOT_FOUND, f"float, but the log does not say that it is computed in {planned}"

    def _written_by(self, producer: ir.Node | None) -> QnnTensor | None:
        """What the operator of that name writes, where its output has another name."""
        name = None if producer is None else producer.name
        node = next((n for n in self.graph.nodes if name in (n.name, MOVED.sub("", n.name))), None)
        tensors = self.graph.tensors
        return None if node is None else next((tensors[n] for n in node.outputs if n in tensors), None)


def validated(log: str) -> dict[str, str]:
    """The precision in which the compiler took each operator, by its name."""
    return dict(_VALIDATED.findall(log))
