"""Compare every planned storage with the operators of the serialized program."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from dovetail.backend import Outcome, ReadBack, TensorReadBack, changed
from dovetail.encoding import DType, QParams
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.origin import origin_of
from dovetail.qdq.params import is_dequantize, is_quantize
from dovetail.qdq.quantized_values import QuantizedValue, quantized_values
from dovetail.storage import Plan

EVIDENCE = "the operators of the XNNPACK delegates, read from the .pte file"
# Planned dtype -> the dtype of the value in the file, with one scale and with one scale per channel.
_DTYPES = {DType.S8: ("qint8", "qcint8"), DType.S32: ("qint32", "qcint32")}
# The dtype of a value in the file -> in the words of a plan.
_PLAN_WORDS = {"fp16": str(DType.F16), "fp32": str(DType.F32)} | {
    name: f"{dtype}{' per channel' * per_channel}"
    for dtype, names in _DTYPES.items()
    for per_channel, name in enumerate(names)
}
_CONVERT = "Convert"
Operator = Mapping[str, Any]


def read_operator_list(emitted_path: Path, census_path: Path, plan: Plan) -> ReadBack:
    """Look up every planned storage in the list of the program's operators."""
    census = json.loads(census_path.read_text())
    program = _Program(ir.load(emitted_path), census["operators"], census["outside"])
    rows = [program.read(stored) for stored in quantized_values(program.emitted, plan)]
    return ReadBack((*rows, *program.read_floats(plan, every=not rows)), EVIDENCE)


class _Program:
    """The operators of a program by the node of the emitted graph that they were made for."""

    def __init__(self, emitted: ir.Model, operators: Sequence[Operator], outside: Sequence[Mapping[str, str]]) -> None:
        self.emitted = emitted
        self._nodes = {node.name: node for node in emitted.graph}
        values = (*emitted.graph.inputs, *emitted.graph.initializers.values())
        self._values = {v.name: v for v in (*values, *(v for node in emitted.graph for v in node.outputs))}
        self._outside = {row["node"] for row in outside}
        self._operators: dict[str, list[Operator]] = {}
        for operator in operators:
            self._operators.setdefault(str(operator["node"]), []).append(operator)

    def read(self, stored: QuantizedValue) -> TensorReadBack:
        """Compare one planned storage with the program."""
        value = self._values[stored.name]
        producer = value.producer()
        if producer is not None and is_quantize(producer):
            return self._compare_output(stored, producer)
        return self._compare_input(stored, value)

    def read_floats(self, plan: Plan, *, every: bool) -> Iterator[TensorReadBack]:
        """Yield the tensors and operands that were requested in float: their operators must read and write float.

        ``every``: those that were not requested, too, because the plan quantizes nothing.
        """
        for name, choice in plan.tensors.items():
            value = self._values[name]
            producer = value.producer()
            used = value.uses() or value.is_graph_output()
            if (every or choice.is_requested_float) and producer is not None and used:
                outcome, detail = self._float_outcome(producer, None)
                yield TensorReadBack(origin_of(value).name, outcome, detail, None, name)
        for edge, choice in plan.edges.items():
            node = self._nodes[edge.node]
            operand = node.inputs[edge.index]
            if choice.is_requested_float and operand is not None:
                outcome, detail = self._float_outcome(node, edge.index)
                yield TensorReadBack(origin_of(operand).name, outcome, detail, edge, str(operand.name))

    def _float_outcome(self, node: ir.Node, index: int | None) -> tuple[Outcome, str]:
        """Whether the operators of a node have float for its input ``index``, or for its output."""
        operators = self._computing(node)
        values = [o["output"] if index is None else _operand(o, index) for o in operators]
        dtypes = [str(value["dtype"]) for value in values if value is not None]
        if quantized := next((dtype for dtype in dtypes if not dtype.startswith("fp")), None):
            return changed(DType.F32, _in_plan_words(quantized), f"in {operators[0]['kind']}")
        if operators:
            return Outcome.MATCHED, f"computed in float by {operators[0]['kind']}"
        if node.name in self._outside:
            return Outcome.MATCHED, "computed in float outside of XNNPACK"
        if node.op_type in DATA_MOVEMENT_OPS:
            return Outcome.ABSORBED, f"a {node.op_type}, which only moves data"
        fused = self._computing(_producer_of_input(node))
        if fused and fused[-1]["output"]["dtype"].startswith("fp"):
            return Outcome.ABSORBED, f"fused into {fused[-1]['kind']}, which writes float"
        return Outcome.NOT_FOUND, "no operator of the program computes it"

    def _compare_output(self, stored: QuantizedValue, quantize: ir.Node) -> TensorReadBack:
        """Compare a tensor with the output of the operator that writes it, or of the Convert after that operator."""
        source = quantize.inputs[0]
        producer = None if source is None else source.producer()
        if producer is not None and not is_dequantize(producer):
            operators = self._computing(producer) or self._computing(_producer_of_input(producer))
            quantized = [operator for operator in operators if operator["output"]["dtype"] != "fp32"]
            if quantized:
                return self._compare(stored, quantized[-1]["output"], f"written by {quantized[-1]['kind']}")
            # A storage of one edge is converted for one consumer: its producer is planned in float.
            if stored.edge is None and self._should_run_in_integers(producer):
                return stored.as_read(*changed(stored.params.dtype, DType.F32, f"{producer.op_type} runs in float"))
        converted = self._operators.get(quantize.name or "", [])
        if converted:
            return self._compare(stored, converted[-1]["output"], "converted from float")
        return self._compare_input(stored, quantize.outputs[0])

    def _compare_input(self, stored: QuantizedValue, value: ir.Value) -> TensorReadBack:
        """Compare a constant or a graph input with the inputs of the operators that read it."""
        for dequantize in (node for node, _ in value.uses() if is_dequantize(node)):
            for node, index in dequantize.outputs[0].uses():
                for operator in self._computing(node):
                    operand = _operand(operator, index)
                    if operand is not None and operand["dtype"] != "fp32":
                        return self._compare(stored, operand, f"read by {operator['kind']}")
        return stored.as_read(Outcome.NOT_FOUND, "no operator of the program reads or writes it")

    def _computing(self, node: ir.Node | None) -> list[Operator]:
        """The operators made for a node, without the conversions before and after it."""
        name = "" if node is None else node.name or ""
        return [operator for operator in self._operators.get(name, []) if name and operator["kind"] != _CONVERT]

    def _should_run_in_integers(self, node: ir.Node) -> bool:
        """Whether all float inputs of a node are dequantized, so that it is planned to run in integers."""
        producers = [v.producer() for v in node.inputs if v is not None and v.dtype is ir.DataType.FLOAT]
        return bool(producers) and all(producer is not None and is_dequantize(producer) for producer in producers)

    def _compare(self, stored: QuantizedValue, value: Mapping[str, Any], detail: str) -> TensorReadBack:
        difference = _difference(stored.params, value)
        if difference is not None:
            return stored.as_read(*changed(*difference))
        return stored.as_read(Outcome.MATCHED, detail)


def _operand(operator: Operator, index: int) -> Mapping[str, Any] | None:
    """The value of an operator that is input ``index`` of its node."""
    inputs: Mapping[str, Any] = operator["inputs"]
    names: tuple[str, ...] = (f"input{index + 1}_id",)
    if "filter_id" in inputs:
        names = ({0: "input1_id", 1: "filter_id", 2: "bias_id"}[index],)
    elif index == 0:
        names = ("input1_id", "input_id")
    return next((inputs[name] for name in names if name in inputs), None)


def _producer_of_input(node: ir.Node) -> ir.Node | None:
    """The producer of a node's first input, into whose operator XNNPACK fuses an activation function."""
    return None if not node.inputs or node.inputs[0] is None else node.inputs[0].producer()


def _in_plan_words(dtype: str) -> str:
    return _PLAN_WORDS.get(dtype, dtype)


def _difference(params: QParams, value: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is planned and what the program has instead; None where the value is as planned."""
    if params.dtype not in _DTYPES:  # in a model of another tool (Q132)
        return str(params.dtype), _in_plan_words(value["dtype"])
    dtype = _DTYPES[params.dtype][params.axis is not None]
    if value["dtype"] != dtype:
        return _in_plan_words(dtype), _in_plan_words(value["dtype"])
    scale, planned = np.asarray(value["scale"], np.float32), params.scale.reshape(-1)
    if scale.shape != planned.shape or not np.allclose(scale, planned, 1e-6, 0):
        return f"scale {planned[0]:.6g}", f"scale {scale[0]:.6g}"
    if params.axis is None and value["zero_point"] != int(params.zero_point):
        return f"zero point {int(params.zero_point)}", f"zero point {value['zero_point']}"
    return None
