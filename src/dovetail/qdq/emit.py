"""Float graph + plan -> QDQ ONNX graph with quantized constants: the graph that ships, and the simulation."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import Array, DType, QParams
from dovetail.errors import InputError
from dovetail.model import origin
from dovetail.model.edit import constant_of, forget_names, free_name
from dovetail.numerics.affine import quantize
from dovetail.qdq.params import IR_TYPES, two_levels
from dovetail.storage import Plan

# Names in the emitted graph of a planned tensor ``x``: before Q, between Q and DQ, after DQ.
BEFORE_Q, QUANTIZED, DEQUANTIZED = "{}__raw", "{}__q", "{}__dq"


def emit_qdq(model: ir.Model, plan: Plan, *, folded_scales: bool = False) -> ir.Model:
    """The QDQ graph of a plan; does not change the float model.

    ``folded_scales``: the scale of an expanded block is one float, not a DequantizeLinear of its integer scale.
    """
    emitted = model.clone()
    forget_names(emitted.graph)
    _Emitter(emitted.graph, plan, folded_scales=folded_scales).run()
    drop_unused_constants(emitted.graph)
    emitted.graph.sort()
    return emitted


def drop_unused_constants(graph: ir.Graph) -> None:
    """Remove the initializers that have no consumer."""
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]


class _Emitter:
    """Inserts the Q and DQ nodes of a plan into a graph, in graph order, so that the same plan gives the same bytes.

    New nodes are appended; the stable topological sort then moves each to just before its consumer.
    """

    def __init__(self, graph: ir.Graph, plan: Plan, *, folded_scales: bool) -> None:
        self._graph = graph
        self._plan = plan
        self._folded_scales = folded_scales
        self._tensors: dict[ir.Value, str] = {}  # values before Q and after DQ -> the name of the planned tensor
        self._conversions: dict[tuple[ir.Value, QParams], ir.Value] = {}
        self._params: dict[QParams, tuple[ir.Value, ...]] = {}

    def run(self) -> None:
        nodes = list(self._graph)
        values = [*self._graph.inputs, *(value for node in nodes for value in node.outputs if value.name)]
        self._check_names(values, nodes)
        for value in values:
            choice = self._plan.tensors.get(value.name or "")
            if choice is not None and isinstance(choice.storage, QParams):
                self._insert_qdq(value, choice.storage)
        for node in nodes:
            for index, operand in enumerate(node.inputs):
                edge = Edge(node.name or "", index)
                choice = self._plan.edges.get(edge)
                if operand is not None and choice is not None and isinstance(choice.storage, QParams):
                    node.replace_input_with(index, self._convert(edge, operand, choice.storage))

    def _check_names(self, values: list[ir.Value], nodes: list[ir.Node]) -> None:
        tensors = {value.name for value in values}
        edges = {Edge(n.name or "", i) for n in nodes for i, operand in enumerate(n.inputs) if operand is not None}
        for name in self._plan.tensors:
            if name not in tensors:
                raise InputError(f"the plan has a row for tensor {name!r}, but the graph has no such tensor")
        for edge in (*self._plan.edges, *self._plan.stored):
            if edge not in edges:
                raise InputError(f"the plan has a row for edge {str(edge)!r}, but the graph has no such edge")

    def _insert_qdq(self, value: ir.Value, params: QParams) -> None:
        """Let every consumer of a value, and the graph outputs, read it through a Q/DQ pair."""
        name, uses, is_input = str(value.name), value.uses(), value.is_graph_input()
        is_output = value.is_graph_output() and not is_input  # a graph input that is also an output is not changed
        integer_output = is_output and self._plan.quantized_io
        float_output = is_output and not self._plan.quantized_io
        if is_output:
            value.name = self._free(BEFORE_Q, name)
            self._tensors[value] = name
        if is_input and self._plan.quantized_io:
            value.type = ir.TensorType(IR_TYPES[params.dtype])
            quantized = value
        elif uses or is_output:
            quantized = self._quantize(value, params, name)
        else:
            return
        if integer_output:
            self._become_output(quantized, name, value)
        if uses or float_output:
            dequantized = self._dequantize(quantized, params, name, value)
            if float_output:
                self._become_output(dequantized, name, value)
            for node, index in uses:
                node.replace_input_with(index, dequantized)
            self._tensors[dequantized] = name

    def _become_output(self, final: ir.Value, name: str, value: ir.Value) -> None:
        final.name = name
        origin.carry(final, value)
        for index, output in enumerate(self._graph.outputs):
            if output is value:
                self._graph.outputs[index] = final

    def _convert(self, edge: Edge, value: ir.Value, params: QParams) -> ir.Value:
        """What one consumer reads: another Q/DQ pair, shared by equal edges; or a quantized constant and its DQ.

        Every consumer has its own quantized constant, scale and zero point: ONNX Runtime 1.31.1 rewrites int8 weights
        for one consumer after the other and fails at load when two share one ("Attempt to replace the existing
        tensor").
        """
        array = constant_of(value)
        tensor = self._tensors.get(value, str(value.name))
        if array is not None:
            integers = self._integers(edge, array, params)
            quantized = self._initializer(QUANTIZED.format(tensor), integers, IR_TYPES[params.dtype], value)
            return self._dequantize(quantized, params, tensor, value)
        if (value, params) not in self._conversions:
            tensor = f"{tensor}__as_{params.dtype}"
            quantized = self._quantize(value, params, tensor)
            self._conversions[value, params] = self._dequantize(quantized, params, tensor, value)
        return self._conversions[value, params]

    def _integers(self, edge: Edge, array: Array, params: QParams) -> Array:
        """The quantized values of a constant: the plan's own integers, else the rounded values."""
        integers = self._plan.stored.get(edge)
        if integers is not None and (integers.shape != array.shape or integers.dtype != params.dtype.numpy):
            raise InputError(
                f"edge {str(edge)!r}: the plan's integers are {integers.dtype} of shape {integers.shape}, "
                f"but the constant is {params.dtype} of shape {array.shape}"
            )
        try:
            return quantize(array, params) if integers is None else integers
        except InputError as error:
            raise InputError(f"edge {str(edge)!r}: {error}") from error

    def _quantize(self, value: ir.Value, params: QParams, tensor: str) -> ir.Value:
        if params.dtype is DType.S32:
            raise InputError(f"tensor {tensor!r}: only constants can be int32, ONNX has no int32 QuantizeLinear")
        name, dtype = self._free(QUANTIZED, tensor), IR_TYPES[params.dtype]
        return self._append("QuantizeLinear", value, params, name, dtype, source=value)

    def _dequantize(self, quantized: ir.Value, params: QParams, tensor: str, source: ir.Value) -> ir.Value:
        name = self._free(DEQUANTIZED, tensor)
        return self._append("DequantizeLinear", quantized, params, name, ir.DataType.FLOAT, source=source)

    def _append(
        self, op_type: str, value: ir.Value, params: QParams, name: str, dtype: ir.DataType, *, source: ir.Value
    ) -> ir.Value:
        attributes = {}
        if params.axis is not None:
            attributes["axis"] = params.axis
        if params.encoding.block_size:
            attributes["block_size"] = params.encoding.block_size
        node = ir.node(op_type, [value, *self._qparam_inputs(params, source)], attributes, name=name)
        output = node.outputs[0]
        output.name, output.type, output.shape = name, ir.TensorType(dtype), value.shape
        origin.derive(output, source)
        self._graph.append(node)
        return output

    def _qparam_inputs(self, params: QParams, source: ir.Value) -> tuple[ir.Value, ...]:
        """The scale and zero point; activations with equal qparams share their initializers.

        An int32 DequantizeLinear gets no zero point: ONNX Runtime does not support one. Symmetric blocks get none,
        because one per block would be as large as a tenth of the scales.
        """
        shared = not source.is_initializer()
        if shared and params in self._params:
            return self._params[params]
        stem, dtype = self._tensors.get(source, source.name), IR_TYPES[params.dtype]
        inputs = [self._scale(params, str(stem), source)]
        if params.dtype is not DType.S32 and (params.zero_point.any() or not params.encoding.is_blocked):
            zero_point = params.zero_point.astype(params.dtype.numpy)
            inputs.append(self._initializer(f"{stem}__zero_point", zero_point, dtype, source))
        if shared:
            self._params[params] = tuple(inputs)
        return tuple(inputs)

    def _scale(self, params: QParams, stem: str, source: ir.Value) -> ir.Value:
        """The scale: an initializer, or the DequantizeLinear of the integer scales of expanded blocks."""
        levels = None if self._folded_scales else two_levels(params)
        if levels is None:
            return self._initializer(f"{stem}__scale", params.scale, ir.DataType.FLOAT, source)
        integers, channel, axis = levels
        dtype = ir.DataType.from_numpy(integers.dtype)
        quantized = self._initializer(f"{stem}__int_scale", integers, dtype, source)
        per_channel = self._initializer(f"{stem}__channel_scale", channel, ir.DataType.FLOAT, source)
        name = self._free("{}__scale", stem)
        node = ir.node("DequantizeLinear", [quantized, per_channel], {"axis": axis}, name=name)
        output = node.outputs[0]
        output.name, output.type, output.shape = name, ir.TensorType(ir.DataType.FLOAT), quantized.shape
        origin.derive(output, source)
        self._graph.append(node)
        return output

    def _initializer(self, name: str, array: Array, dtype: ir.DataType, source: ir.Value) -> ir.Value:
        free = free_name(self._graph, name)
        tensor = ir.Tensor(np.array(array, order="C"), dtype=dtype, name=free)
        value = ir.Value(name=free, const_value=tensor, type=ir.TensorType(dtype), shape=tensor.shape)
        origin.derive(value, source)
        self._graph.register_initializer(value)
        return value

    def _free(self, pattern: str, tensor: str) -> str:
        return free_name(self._graph, pattern.format(tensor))
