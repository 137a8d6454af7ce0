"""Reading back what ONNX Runtime made of a QDQ graph, from the optimized graph that it wrote while building."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from dovetail.backend import Outcome, ReadBack, TensorReadBack
from dovetail.encoding import Array, DType, QParams
from dovetail.model.edit import attribute, constant_of, shape_of
from dovetail.model.movers import MOVERS
from dovetail.model.origin import each_value, origin_of
from dovetail.qdq.stored import StoredValue, stored_values
from dovetail.storage import Plan


class _Place(NamedTuple):
    """Where an operator states the numbers of a value: indices of the value, its scale and its zero point."""

    value: int
    scale: int
    zero_point: int


# Operator -> the inputs that it describes, and the (scale, zero point) indices of its output.
_BINARY = ((_Place(0, 1, 2), _Place(3, 4, 5)), (6, 7))
_UNARY = ((_Place(0, 1, 2),), (3, 4))
_STATEMENTS: dict[str, tuple[tuple[_Place, ...], tuple[int, int] | None]] = {
    "QuantizeLinear": ((), (1, 2)),
    "DequantizeLinear": ((_Place(0, 1, 2),), None),
    "QLinearConv": _BINARY,
    "QLinearMatMul": _BINARY,
    "QLinearAdd": _BINARY,
    "QLinearMul": _BINARY,
    "QGemm": ((_Place(0, 1, 2), _Place(3, 4, 5)), (7, 8)),
    "MatMulIntegerToFloat": ((_Place(0, 2, 4), _Place(1, 3, 5)), None),
    "QLinearSoftmax": _UNARY,
    "QLinearSigmoid": _UNARY,
    "QLinearLeakyRelu": _UNARY,
    "QLinearGlobalAveragePool": _UNARY,
    "QLinearAveragePool": _UNARY,
    "QLinearReduceMean": ((_Place(0, 1, 2),), (3, 4)),
}
# Integer operators with a weight, and the input of those that has an int32 bias.
_WEIGHTED = frozenset(("QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat"))
_BIASES = {"QLinearConv": 8, "QGemm": 6}
# A convolution that runs channels-last is written anew, under the old name with this suffix.
_LAYOUT_SUFFIX = re.compile(r"_token_\d+$")
# Operators that hand stored bytes on, among what the optimizer writes.
_LAYOUT = frozenset((*MOVERS, "Resize"))
# ONNX Runtime writes int8 constants as uint8 (zero point + 128) where the CPU's int8 kernels would saturate.
_AS_UNSIGNED = "_s8_2_u8"


class _Numbers(NamedTuple):
    """What an operator says of a value; the axis is None where one scale serves all."""

    scale: Array
    zero_point: Array | None
    axis: int | None


def read_optimized(emitted_path: Path, optimized_path: Path, plan: Plan) -> ReadBack:
    """Every planned storage, looked up in the optimized graph."""
    emitted, optimized = ir.load(emitted_path), ir.load(optimized_path)
    compiled = _Compiled(emitted, optimized)
    found = [(stored, _read(stored, compiled.find(stored.name))) for stored in stored_values(emitted, plan)]
    matched = {stored.group for stored, one in found if stored.group and one.outcome is Outcome.MATCHED}
    changed = {stored.group for stored, one in found if stored.group and one.outcome is Outcome.CHANGED}
    tensors = []
    for stored, one in found:
        if one.outcome is Outcome.NOT_FOUND and stored.group in matched - changed:
            detail = f"a layout step inside group {stored.group!r}, whose bytes were read back as planned"
            one = replace(one, outcome=Outcome.ABSORBED, detail=detail)
        tensors.append(one)
    tensors += compiled.made_integer(plan)
    return ReadBack(tuple(tensors), evidence="the optimized graph that ONNX Runtime wrote while building the session")


class _Compiled:
    """Where an integer value of the emitted graph is in the optimized one."""

    def __init__(self, emitted: ir.Model, optimized: ir.Model) -> None:
        self._emitted = {v.name: v for v in each_value(emitted.graph)}
        self._readers = {node.name: node for node in emitted.graph}
        self._values = {v.name: v for v in each_value(optimized.graph)}
        self._nodes = {_LAYOUT_SUFFIX.sub("", node.name or ""): node for node in optimized.graph}

    def made_integer(self, plan: Plan) -> Iterator[TensorReadBack]:
        """Constants that the plan keeps in float, but whose reader became an integer operator."""
        for edge, choice in plan.edges.items():
            node = self._nodes.get(edge.node)
            if node is None or isinstance(choice.storage, QParams) or node.op_type not in _WEIGHTED:
                continue
            weight = self._readers[edge.node].inputs[edge.index]
            if edge.index == 1 and weight is not None:
                detail = f"kept in float, but runs as {node.op_type}"
                yield TensorReadBack(origin_of(weight).name, Outcome.CHANGED, detail, edge, str(weight.name))

    def find(self, name: str) -> ir.Value | None:
        """By its name; or as what is written by the operator that made it, which keeps its name in another layout."""
        for known in (name, name + _AS_UNSIGNED):
            if known in self._values:
                return self._values[known]
        quantize = self._emitted[name].producer() if name in self._emitted else None
        raw = None if quantize is None else quantize.inputs[0]
        for _ in range(2):  # the operator itself, or the one that it was fused into as an activation
            maker = None if raw is None else raw.producer()
            if maker is None:
                return None
            if maker.name in self._nodes:
                return _stored_behind(self._nodes[maker.name].outputs[0])
            raw = maker.inputs[0]
        return None


def _stored_behind(value: ir.Value) -> ir.Value:
    """What a float operator's output is stored as, behind the QuantizeLinear that follows, layout steps in between."""
    for node, index in value.uses():
        if node.op_type == "QuantizeLinear":
            return node.outputs[0]
        if node.op_type in _LAYOUT and index == 0:
            return _stored_behind(node.outputs[0])
    return value


def _read(stored: StoredValue, value: ir.Value | None) -> TensorReadBack:
    if value is None:
        return stored.as_read(Outcome.NOT_FOUND, "no such value in the optimized graph")
    statements = list(_said_of_bias(value) if stored.params.dtype is DType.S32 else _statements(value))
    if not statements:
        return stored.as_read(Outcome.NOT_FOUND, "no operator states its scale")
    for numbers in statements:
        difference = _difference(stored, numbers)
        if difference:
            return stored.as_read(Outcome.CHANGED, difference)
    return stored.as_read(Outcome.MATCHED, _reader(value))


def _statements(value: ir.Value) -> Iterator[_Numbers]:
    """What the operators around a value say of its numbers; layout operators hand on what they carry."""
    yield from _said_by_readers(value)
    producer = value.producer()
    if producer is None:
        return
    _, output = _STATEMENTS.get(producer.op_type, ((), None))
    if output is not None:
        yield _numbers(producer, *output)
    elif producer.op_type == "QLinearConcat":
        yield _numbers(producer, 0, 1)
    elif producer.op_type in _LAYOUT and producer.inputs[0] is not None:
        yield from _statements(producer.inputs[0])


def _said_by_readers(value: ir.Value) -> Iterator[_Numbers]:
    for node, index in value.uses():
        places, _ = _STATEMENTS.get(node.op_type, ((), None))
        if node.op_type == "QLinearConcat" and index >= 2:
            places = (_Place(index, index + 1, index + 2),)
        for place in places:
            if place.value == index:
                yield _numbers(node, place.scale, place.zero_point)
        if node.op_type in _LAYOUT and index == 0:
            for output in node.outputs:
                yield from _said_by_readers(output)


def _said_of_bias(value: ir.Value) -> Iterator[_Numbers]:
    """An int32 bias has the product of its operator's scales, said or not."""
    for node, index in value.uses():
        if _BIASES.get(node.op_type) == index:
            source, weight = (_scales(node, place) for place in (1, 4))
            yield _Numbers(source * weight, None, 0 if weight.size > 1 else None)
        elif node.op_type == "DequantizeLinear" and index == 0:
            yield _numbers(node, 1, 2)


def _numbers(node: ir.Node, scale: int, zero_point: int) -> _Numbers:
    scales = _scales(node, scale)
    points = constant_of(node.inputs[zero_point]) if len(node.inputs) > zero_point else None
    return _Numbers(scales, points, _axis(node, scale) if scales.size > 1 else None)


def _scales(node: ir.Node, index: int) -> Array:
    scales = constant_of(node.inputs[index])
    if scales is None:
        raise ValueError(f"{node.op_type} {node.name!r} has a scale that is not a constant")
    return scales


def _axis(node: ir.Node, scale: int) -> int | None:
    """The axis that several scales go along: an attribute, or fixed by the operator for its weight."""
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return int(attribute(node, "axis", 1))
    if node.op_type == "QLinearConv":
        return 0
    if node.op_type == "QGemm":
        return 0 if attribute(node, "transB", 0) else 1
    weight = shape_of(node.inputs[1 if node.op_type == "MatMulIntegerToFloat" else 3])
    return None if weight is None else len(weight) - 1


def _difference(stored: StoredValue, numbers: _Numbers) -> str:
    """How what is there differs from what was planned; empty if it does not."""
    params = stored.params
    if numbers.scale.size != params.scale.size or not np.allclose(numbers.scale.ravel(), params.scale.ravel(), 1e-6, 0):
        return f"scale {np.ravel(numbers.scale)[0]:.6g} instead of {np.ravel(params.scale)[0]:.6g}"
    if numbers.axis is not None and numbers.axis != params.axis:
        return f"scales along axis {numbers.axis} instead of {params.axis}"
    if numbers.zero_point is None:
        return "no zero point" if np.any(params.zero_point) else ""
    dtype = numbers.zero_point.dtype
    zero_point = np.ravel(numbers.zero_point).astype(np.int64)
    if dtype != params.dtype.numpy:
        if params.dtype is not DType.S8 or dtype != np.uint8:
            return f"{dtype} instead of {params.dtype}"
        zero_point = zero_point - 128  # the same numbers on the unsigned grid
    if not np.array_equal(zero_point, np.ravel(params.zero_point)):
        return f"zero point {zero_point[0]} instead of {np.ravel(params.zero_point)[0]}"
    return ""


def _reader(value: ir.Value) -> str:
    ops = sorted({node.op_type for node, _ in value.uses()})
    return f"read by {', '.join(ops)}" if ops else "graph output"
