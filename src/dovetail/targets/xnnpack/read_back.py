"""Reading back what was lowered: every planned storage against the operators of the serialized program."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from dovetail.backend import Outcome, ReadBack, TensorReadBack
from dovetail.encoding import DType, QParams
from dovetail.qdq.params import is_dequantize, is_quantize
from dovetail.qdq.stored import StoredValue, stored_values
from dovetail.storage import Plan

EVIDENCE = "the operators of the XNNPACK delegates, read from the .pte file"
# The dtype of a value in the file, by what was planned: with one scale, and with one per channel.
_DTYPES = {DType.S8: ("qint8", "qcint8"), DType.S32: ("qint32", "qcint32")}
_CONVERT = "Convert"
Operator = Mapping[str, Any]


def read_census(emitted_path: Path, census_path: Path, plan: Plan) -> ReadBack:
    """Every planned storage, looked up in the program."""
    program = _Program(ir.load(emitted_path), json.loads(census_path.read_text())["operators"])
    return ReadBack(tuple(program.read(stored) for stored in stored_values(program.emitted, plan)), EVIDENCE)


class _Program:
    """The operators of a program by the node of the emitted graph that they were made for."""

    def __init__(self, emitted: ir.Model, operators: Sequence[Operator]) -> None:
        self.emitted = emitted
        self._nodes = {node.name: node for node in emitted.graph}
        values = (*emitted.graph.inputs, *emitted.graph.initializers.values())
        self._values = {v.name: v for v in (*values, *(v for node in emitted.graph for v in node.outputs))}
        self._made: dict[str, list[Operator]] = {}
        for each in operators:
            self._made.setdefault(str(each["node"]), []).append(each)

    def read(self, stored: StoredValue) -> TensorReadBack:
        """One planned storage as it is in the program."""
        value = self._values[stored.name]
        producer = value.producer()
        if producer is not None and is_quantize(producer):
            return self._written(stored, producer)
        return self._read_by(stored, value)

    def _written(self, stored: StoredValue, quantize: ir.Node) -> TensorReadBack:
        """A tensor that an operator writes: in these integers itself, or converted to them behind it."""
        source = quantize.inputs[0]
        maker = None if source is None else source.producer()
        if maker is not None and not is_dequantize(maker):
            made = self._computing(maker) or self._computing(_in_front(maker))
            written = [each for each in made if each["output"]["dtype"] != "fp32"]
            if written:
                return self._compare(stored, written[-1]["output"], f"written by {written[-1]['kind']}")
            # On an edge it is converted for one reader: what makes it is planned in float.
            if stored.edge is None and self._should_run_in_integers(maker):
                return self._found(stored, Outcome.CHANGED, f"{maker.op_type} runs in float")
        converted = self._made.get(quantize.name or "", [])
        if converted:
            return self._compare(stored, converted[-1]["output"], "converted from float")
        return self._read_by(stored, quantize.outputs[0])

    def _read_by(self, stored: StoredValue, value: ir.Value) -> TensorReadBack:
        """Integers that are only seen by what reads them: constants, and inputs."""
        for read in (node for node, _ in value.uses() if is_dequantize(node)):
            for node, index in read.outputs[0].uses():
                for each in self._computing(node):
                    operand = _operand(each, index)
                    if operand is not None and operand["dtype"] != "fp32":
                        return self._compare(stored, operand, f"read by {each['kind']}")
        return self._found(stored, Outcome.NOT_FOUND, "no operator of the program has it")

    def _computing(self, node: ir.Node | None) -> list[Operator]:
        """The operators made for a node, without conversions in front of and behind it."""
        name = "" if node is None else node.name or ""
        return [each for each in self._made.get(name, []) if name and each["kind"] != _CONVERT]

    def _should_run_in_integers(self, node: ir.Node) -> bool:
        """Whether all that a node reads is stored in integers, so that its output is meant to be computed there."""
        read = [v.producer() for v in node.inputs if v is not None and v.dtype is ir.DataType.FLOAT]
        return bool(read) and all(maker is not None and is_dequantize(maker) for maker in read)

    def _compare(self, stored: StoredValue, value: Mapping[str, Any], detail: str) -> TensorReadBack:
        difference = _difference(stored.params, value)
        if difference:
            return self._found(stored, Outcome.CHANGED, difference)
        return self._found(stored, Outcome.MATCHED, detail)

    def _found(self, stored: StoredValue, outcome: Outcome, detail: str) -> TensorReadBack:
        return stored.as_read(outcome, detail)


def _operand(each: Operator, index: int) -> Mapping[str, Any] | None:
    """The value that an operator has for an input of its node."""
    inputs: Mapping[str, Any] = each["inputs"]
    names: tuple[str, ...] = (f"input{index + 1}_id",)
    if "filter_id" in inputs:
        names = ({0: "input1_id", 1: "filter_id", 2: "bias_id"}[index],)
    elif index == 0:
        names = ("input1_id", "input_id")
    return next((inputs[name] for name in names if name in inputs), None)


def _in_front(node: ir.Node) -> ir.Node | None:
    """What a node reads is made by: an activation stands in the operator in front of it."""
    return None if not node.inputs or node.inputs[0] is None else node.inputs[0].producer()


def _difference(params: QParams, value: Mapping[str, Any]) -> str:
    """How what is there differs from what was planned; empty if it does not."""
    wanted = _DTYPES[params.dtype][params.axis is not None]
    if value["dtype"] != wanted:
        return f"{value['dtype']} instead of {wanted}"
    scale, planned = np.asarray(value["scale"], np.float32), params.scale.reshape(-1)
    if scale.shape != planned.shape or not np.allclose(scale, planned, 1e-6, 0):
        return f"scale {scale[0]:.6g} instead of {planned[0]:.6g}"
    if params.axis is None and value["zero_point"] != int(params.zero_point):
        return f"zero point {value['zero_point']} instead of {int(params.zero_point)}"
    return ""
