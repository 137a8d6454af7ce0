"""Float graph + plan -> QDQ ONNX graph with integer constants: the graph that ships, and the simulation."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, DType, QParams
from dovetail.errors import InputError
from dovetail.model import origin
from dovetail.model.edit import constant_of
from dovetail.numerics.affine import quantize
from dovetail.qdq.params import IR_TYPES
from dovetail.storage import Edge, FloatStorage, Plan

# Raw, integer and read-back form of a planned tensor ``x`` in the emitted graph.
RAW, STORED, READ = "{}__raw", "{}__q", "{}__dq"


def emit_qdq(model: ir.Model, plan: Plan) -> ir.Model:
    """The QDQ graph of a plan; the float model is not changed."""
    emitted = model.clone()
    _Emitter(emitted.graph, plan).run()
    emitted.graph.sort()
    return emitted


class _Emitter:
    """Writes one plan into one graph, in graph order, so that the same plan gives the same bytes."""

    def __init__(self, graph: ir.Graph, plan: Plan) -> None:
        self._graph = graph
        self._plan = plan
        self._constants: dict[tuple[str, QParams, bytes], ir.Value] = {}
        self._params: dict[QParams, tuple[ir.Value, ir.Value | None]] = {}

    def run(self) -> None:
        nodes = list(self._graph)
        outputs = [v.name for v in self._graph.outputs]
        inputs = [v for v in self._graph.inputs if self._stored(v) is not None]
        for value in inputs:
            self._store_input(value, nodes[0])
        for node in nodes:
            for value in node.outputs:
                if self._stored(value) is not None:
                    self._store_output(value, node)
        for node in nodes:
            for index, operand in enumerate(node.inputs):
                choice = self._plan.edges.get(Edge(node.name or "", index))
                if operand is not None and choice is not None and isinstance(choice.storage, QParams):
                    node.replace_input_with(index, self._convert(node, index, operand, choice.storage))
        for value in list(self._graph.initializers.values()):
            if not value.uses() and not value.is_graph_output():
                del self._graph.initializers[value.name or ""]
        if [v.name for v in self._graph.outputs] != outputs:
            raise ValueError("emission changed the names of the graph's outputs")

    def _stored(self, value: ir.Value) -> QParams | None:
        choice = self._plan.tensors.get(value.name or "")
        if choice is None or value.dtype is None:
            return None
        if isinstance(choice.storage, FloatStorage):
            if choice.storage.dtype is not DType.F32:
                raise InputError(f"tensor {value.name!r}: a QDQ graph cannot store {choice.storage.dtype} here")
            return None
        return choice.storage

    def _store_input(self, value: ir.Value, first: ir.Node) -> None:
        params = self._stored(value)
        if params is None:
            return
        uses = list(value.uses())
        if self._plan.quantized_io:
            value.dtype = IR_TYPES[params.dtype]
            read = self._dequantize(value, params, READ.format(value.name), first, source=value)
        else:
            read = self._pair(value, params, value.name or "", first)
        for node, index in uses:
            node.replace_input_with(index, read)

    def _store_output(self, value: ir.Value, node: ir.Node) -> None:
        """Quantize a node's output, and give every reader what comes back."""
        params = self._stored(value)
        if params is None:
            return
        name, uses, is_output = value.name or "", list(value.uses()), value.is_graph_output()
        if is_output:
            value.name = RAW.format(name)
        quantized = self._quantize(value, params, STORED.format(name), node, after=True)
        read_name = name if is_output and not self._plan.quantized_io else READ.format(name)
        read = self._dequantize(quantized, params, read_name, quantized.producer() or node, source=value, after=True)
        for reader, index in uses:
            reader.replace_input_with(index, read)
        if is_output:
            final = quantized if self._plan.quantized_io else read
            final.name = name
            for index, output in enumerate(self._graph.outputs):
                if output is value:
                    self._graph.outputs[index] = final
            origin.carry(final, value)
            if self._plan.quantized_io and not uses:
                self._graph.remove(read.producer() or node, safe=True)

    def _convert(self, node: ir.Node, index: int, value: ir.Value, params: QParams) -> ir.Value:
        """What one consumer sees: a stored constant read back, or a further pair on its edge."""
        edge = Edge(node.name or "", index)
        array = constant_of(value)
        if array is None:
            return self._pair(value, params, f"{value.name}__to_{node.name}_{index}", node)
        stored = self._plan.stored.get(edge)
        if stored is None:
            stored = quantize(array, params)
        key = (value.name or "", params, stored.tobytes())
        if key not in self._constants:
            self._constants[key] = self._initializer(STORED.format(value.name), stored, params, source=value)
        integers = self._constants[key]
        name = f"{value.name}__dq_{node.name}_{index}"
        return self._dequantize(integers, params, name, node, source=value)

    def _pair(self, value: ir.Value, params: QParams, stem: str, before: ir.Node) -> ir.Value:
        quantized = self._quantize(value, params, STORED.format(stem), before)
        return self._dequantize(quantized, params, READ.format(stem), before, source=value)

    def _quantize(self, value: ir.Value, params: QParams, name: str, at: ir.Node, *, after: bool = False) -> ir.Value:
        return self._insert("QuantizeLinear", value, params, name, at, IR_TYPES[params.dtype], value, after)

    def _dequantize(
        self, stored: ir.Value, params: QParams, name: str, at: ir.Node, *, source: ir.Value, after: bool = False
    ) -> ir.Value:
        return self._insert("DequantizeLinear", stored, params, name, at, ir.DataType.FLOAT, source, after)

    def _insert(
        self,
        op_type: str,
        value: ir.Value,
        params: QParams,
        name: str,
        at: ir.Node,
        dtype: ir.DataType,
        source: ir.Value,
        after: bool,
    ) -> ir.Value:
        attributes = {}
        if params.axis is not None:
            attributes["axis"] = params.axis
        if params.encoding.block_size:
            attributes["block_size"] = params.encoding.block_size
        node = ir.node(op_type, [value, *self._numbers(params, source)], attributes, name=name)
        output = node.outputs[0]
        output.name, output.type, output.shape = name, ir.TensorType(dtype), value.shape
        origin.derive(output, source)
        if after:
            self._graph.insert_after(at, node)
        else:
            self._graph.insert_before(at, node)
        return output

    def _numbers(self, params: QParams, source: ir.Value) -> list[ir.Value]:
        """The scale and zero point initializers of a QParams; int32 has no zero point in ONNX Runtime."""
        if params not in self._params:
            stem = f"{source.name}__qparams{len(self._params)}"
            scale = self._initializer(f"{stem}_scale", params.scale, None, source=source)
            zero = None
            if params.dtype is not DType.S32:
                points = params.zero_point.astype(params.dtype.numpy)
                zero = self._initializer(f"{stem}_zero_point", points, params, source=source)
            self._params[params] = (scale, zero)
        return [v for v in self._params[params] if v is not None]

    def _initializer(self, name: str, array: Array, params: QParams | None, *, source: ir.Value) -> ir.Value:
        dtype = ir.DataType.FLOAT if params is None else IR_TYPES[params.dtype]
        number, free = 0, name
        while free in self._graph.initializers:
            number += 1
            free = f"{name}.{number}"
        tensor = ir.Tensor(np.array(array, order="C"), dtype=dtype, name=free)
        value = ir.Value(name=free, const_value=tensor, type=ir.TensorType(dtype), shape=tensor.shape)
        origin.derive(value, source)
        self._graph.register_initializer(value)
        return value
