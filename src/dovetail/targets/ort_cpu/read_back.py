"""Compare every planned storage with the optimized graph that ONNX Runtime wrote while it built the session."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from dovetail.backend import Outcome, ReadBack, TensorReadBack, changed
from dovetail.encoding import Array, DType, QParams
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.origin import each_value, origin_of
from dovetail.qdq.params import is_dequantize, qparams_of
from dovetail.qdq.quantized_values import QuantizedValue, quantized_values
from dovetail.storage import Plan
from dovetail.targets.ort_cpu.floats import float_rows, runs_in_integers


class _InputIndices(NamedTuple):
    """The input indices of a quantized value, its scale and its zero point."""

    value: int
    scale: int
    zero_point: int


# Operator -> the indices of its quantized inputs, and the (scale, zero point) indices of its output.
_BINARY = ((_InputIndices(0, 1, 2), _InputIndices(3, 4, 5)), (6, 7))
_UNARY = ((_InputIndices(0, 1, 2),), (3, 4))
_QPARAMS_INPUTS: dict[str, tuple[tuple[_InputIndices, ...], tuple[int, int] | None]] = {
    "QuantizeLinear": ((), (1, 2)),
    "DequantizeLinear": ((_InputIndices(0, 1, 2),), None),
    "QLinearConv": _BINARY,
    "QLinearMatMul": _BINARY,
    "QLinearAdd": _BINARY,
    "QLinearMul": _BINARY,
    "QGemm": ((_InputIndices(0, 1, 2), _InputIndices(3, 4, 5)), (7, 8)),
    "MatMulIntegerToFloat": ((_InputIndices(0, 2, 4), _InputIndices(1, 3, 5)), None),
    "QLinearSoftmax": _UNARY,
    "QLinearSigmoid": _UNARY,
    "QLinearLeakyRelu": _UNARY,
    "QLinearGlobalAveragePool": _UNARY,
    "QLinearAveragePool": _UNARY,
    "QLinearReduceMean": ((_InputIndices(0, 1, 2),), (3, 4)),
}
# Integer operators with a weight, and the input index of their int32 bias.
_WEIGHTED = frozenset(("QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat"))
_BIASES = {"QLinearConv": 8, "QGemm": 6}
# A convolution that runs channels-last gets a new node, named by the old name with this suffix.
_LAYOUT_SUFFIX = re.compile(r"_token_\d+$")
# Operators of the optimized graph that pass their input's quantization through.
_LAYOUT = frozenset((*DATA_MOVEMENT_OPS, "Resize"))
# ONNX Runtime writes int8 constants as uint8 (zero point + 128) where the CPU's int8 kernels would saturate.
_AS_UNSIGNED = "_s8_2_u8"


class _OperatorQParams(NamedTuple):
    """The quantization parameters that an operator has for a value; the axis is None for per-tensor scales."""

    scale: Array
    zero_point: Array | None
    axis: int | None


def read_optimized(emitted_path: Path, optimized_path: Path, plan: Plan) -> ReadBack:
    """Look up every planned storage in the optimized graph."""
    emitted, optimized = ir.load(emitted_path), ir.load(optimized_path)
    graph = _OptimizedGraph(emitted, optimized)
    rows = [(stored, _read(stored, graph.find(stored.name))) for stored in quantized_values(emitted, plan)]
    matched = {stored.group for stored, row in rows if stored.group and row.outcome is Outcome.MATCHED}
    not_as_planned = {stored.group for stored, row in rows if stored.group and row.outcome is Outcome.CHANGED}
    tensors = []
    for stored, row in rows:
        if row.outcome is Outcome.NOT_FOUND and stored.group in matched - not_as_planned:
            detail = f"only moves data inside group {stored.group!r}, which was read back as planned"
            row = replace(row, outcome=Outcome.ABSORBED, detail=detail)
        tensors.append(row)
    tensors += float_rows(emitted, optimized, graph.nodes, plan)
    read = {row.edge for row in tensors}
    tensors += [row for row in graph.made_integer(plan) if row.edge not in read]
    return ReadBack(tuple(tensors), evidence="the optimized graph that ONNX Runtime wrote while building the session")


class _OptimizedGraph:
    """Finds the integer values of the emitted graph in the optimized graph."""

    def __init__(self, emitted: ir.Model, optimized: ir.Model) -> None:
        self._emitted = {v.name: v for v in each_value(emitted.graph)}
        self._emitted_nodes = {node.name: node for node in emitted.graph}
        self._values = {v.name: v for v in each_value(optimized.graph)}
        self.nodes = {_LAYOUT_SUFFIX.sub("", node.name or ""): node for node in optimized.graph}

    def made_integer(self, plan: Plan) -> Iterator[TensorReadBack]:
        """Constants that the plan keeps in float, but whose consumer became an integer operator."""
        for edge, choice in plan.edges.items():
            node = self.nodes.get(edge.node)
            if node is None or isinstance(choice.storage, QParams) or node.op_type not in _WEIGHTED:
                continue
            weight = self._emitted_nodes[edge.node].inputs[edge.index]
            if edge.index == 1 and weight is not None:
                yield TensorReadBack(origin_of(weight).name, *runs_in_integers(node), edge, str(weight.name))

    def find(self, name: str) -> ir.Value | None:
        """Find a value by its name, or as the output of a node that keeps its name in another layout.

        That node is its QuantizeLinear, or the producer of the float value if both became one integer operator. A Clip
        whose bounds its scale and zero point have too is removed, and its input's Q/DQ pair is left.
        """
        for candidate in (name, name + _AS_UNSIGNED):
            if candidate in self._values:
                return self._values[candidate]
        quantize = self._emitted[name].producer() if name in self._emitted else None
        if quantize is not None and quantize.name in self.nodes:
            return self.nodes[quantize.name].outputs[0]
        source = None if quantize is None else quantize.inputs[0]
        last = None if source is None else source.producer()
        is_clipped = last is not None and is_op(last, "Clip", "Relu")
        for _ in range(2):  # the producer, or the operator that the producer was fused into as an activation
            producer = None if source is None else source.producer()
            if producer is None:
                return None
            if producer.name in self.nodes:
                return _quantized_output(self.nodes[producer.name].outputs[0])
            source = producer.inputs[0]
            if is_dequantize(producer):
                return self.find((source.name or "") if source is not None else "") if is_clipped else None
        return None


def _quantized_output(value: ir.Value) -> ir.Value:
    """The output of the QuantizeLinear after a float value, also after data-movement operators; else the value."""
    for node, index in value.uses():
        if node.op_type == "QuantizeLinear":
            return node.outputs[0]
        if node.op_type in _LAYOUT and index == 0:
            return _quantized_output(node.outputs[0])
    return value


def _read(stored: QuantizedValue, value: ir.Value | None) -> TensorReadBack:
    if value is None:
        return stored.as_read(Outcome.NOT_FOUND, "no such value in the optimized graph")
    all_qparams = list(_bias_qparams(value) if stored.params.dtype is DType.S32 else _qparams(value))
    if not all_qparams:
        return stored.as_read(Outcome.NOT_FOUND, "no operator of the optimized graph has its scale")
    for qparams in all_qparams:
        difference = _difference(stored, qparams)
        if difference is not None:
            return stored.as_read(*changed(*difference))
    return stored.as_read(Outcome.MATCHED, _consumers(value))


def _qparams(value: ir.Value) -> Iterator[_OperatorQParams]:
    """The qparams that the producer and the consumers of a value have for it, also after data-movement operators."""
    yield from _consumer_qparams(value)
    producer = value.producer()
    if producer is None:
        return
    _, output = _QPARAMS_INPUTS.get(producer.op_type, ((), None))
    if output is not None:
        yield _operator_qparams(producer, *output)
    elif producer.op_type == "QLinearConcat":
        yield _operator_qparams(producer, 0, 1)
    elif producer.op_type in _LAYOUT and producer.inputs[0] is not None:
        yield from _qparams(producer.inputs[0])


def _consumer_qparams(value: ir.Value) -> Iterator[_OperatorQParams]:
    for node, index in value.uses():
        inputs, _ = _QPARAMS_INPUTS.get(node.op_type, ((), None))
        if node.op_type == "QLinearConcat" and index >= 2:
            inputs = (_InputIndices(index, index + 1, index + 2),)
        for indices in inputs:
            if indices.value == index:
                yield _operator_qparams(node, indices.scale, indices.zero_point)
        if node.op_type in _LAYOUT and index == 0:
            for output in node.outputs:
                yield from _consumer_qparams(output)


def _bias_qparams(value: ir.Value) -> Iterator[_OperatorQParams]:
    """The scale of an int32 bias: implicit (input scale x weight scale), or that of its DequantizeLinear."""
    for node, index in value.uses():
        if _BIASES.get(node.op_type) == index:
            source, weight = (_scales(node, scale_index) for scale_index in (1, 4))
            yield _OperatorQParams(source * weight, None, 0 if weight.size > 1 else None)
        elif node.op_type == "DequantizeLinear" and index == 0:
            yield _operator_qparams(node, 1, 2)


def _operator_qparams(node: ir.Node, scale: int, zero_point: int) -> _OperatorQParams:
    scales = _scales(node, scale)
    points = constant_of(node.inputs[zero_point]) if len(node.inputs) > zero_point else None
    return _OperatorQParams(scales, points, _axis(node, scale) if scales.size > 1 else None)


def _scales(node: ir.Node, index: int) -> Array:
    scales = constant_of(node.inputs[index])
    if scales is None and is_dequantize(node):
        scales = qparams_of(node).scale  # of expanded blocks: integers times one scale per channel
    if scales is None:
        raise ValueError(f"{node.op_type} {node.name!r} has a scale that is not a constant")
    return scales


def _axis(node: ir.Node, scale: int) -> int | None:
    """The axis of per-channel scales: an attribute, or fixed by the operator for its weight."""
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return int(attribute(node, "axis", 1))
    if node.op_type == "QLinearConv":
        return 0
    if node.op_type == "QGemm":
        return 0 if attribute(node, "transB", 0) else 1
    weight = shape_of(node.inputs[1 if node.op_type == "MatMulIntegerToFloat" else 3])
    return None if weight is None else len(weight) - 1


def _difference(stored: QuantizedValue, actual: _OperatorQParams) -> tuple[str, str] | None:
    """What is planned and what an operator has instead; None where its qparams are the planned ones."""
    params = stored.params
    if actual.scale.size != params.scale.size or not np.allclose(actual.scale.ravel(), params.scale.ravel(), 1e-6, 0):
        return f"scale {np.ravel(params.scale)[0]:.6g}", f"scale {np.ravel(actual.scale)[0]:.6g}"
    if actual.axis is not None and actual.axis != params.axis:
        return f"scales along axis {params.axis}", f"scales along axis {actual.axis}"
    if actual.zero_point is None:
        return (f"zero point {np.ravel(params.zero_point)[0]}", "none") if np.any(params.zero_point) else None
    dtype = actual.zero_point.dtype
    zero_point = np.ravel(actual.zero_point).astype(np.int64)
    if dtype != params.dtype.numpy:
        if params.dtype is not DType.S8 or dtype != np.uint8:
            return str(params.dtype), str(dtype)
        zero_point = zero_point - 128  # the same values, as uint8 with zero point + 128
    if not np.array_equal(zero_point, np.ravel(params.zero_point)):
        return f"zero point {np.ravel(params.zero_point)[0]}", f"zero point {zero_point[0]}"
    return None


def _consumers(value: ir.Value) -> str:
    ops = sorted({node.op_type for node, _ in value.uses()})
    return f"read by {', '.join(ops)}" if ops else "graph output"
