"""QDQ ONNX graph, ours or another tool's -> (float graph, plan) that emit a graph with bit-identical outputs.

Where a plan cannot describe all quantization of one value (three Q/DQ pairs in a row, two quantized outputs), the float
graph gets an Identity, so that each quantized copy is a value of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import Array, QParams
from dovetail.errors import InputError
from dovetail.model import edit
from dovetail.numerics.affine import dequantize, quantize
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.remove_unused import remove_unused
from dovetail.qdq.moved import read_before_moving
from dovetail.qdq.params import dequantizes_scales, is_dequantize, is_quantize, use_onnx_domain
from dovetail.qdq.views import QuantizedCopy, ValueReaders, dequantized_copies, readers_of, refuse_other_consumers
from dovetail.storage import IN_FLOAT32, Choice, Plan, Reason, ScaleSource, Storage

_AS_READ = "as in the model"
_FLOAT = ir.DataType.FLOAT
_Use = tuple[ir.Node, int]
# Suffixes of quantized constants: of our emitter, and of ONNX Runtime's quantizers.
_QUANTIZED_SUFFIX = re.compile(r"(__q|_quantized|_DQ_Q\d+)(\.\d+)?$")
# Operators that compute on integers or choose their own qparams, which a plan cannot describe.
_INTEGER_PREFIXES = ("QLinear", "QOrdered", "DynamicQuantize")
_INTEGER_OPS = frozenset(
    (
        "ConvInteger",
        "GatherBlockQuantized",
        "MatMulBnb4",
        "MatMulInteger",
        "MatMulInteger16",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "MulInteger",
        "QAttention",
        "QEmbedLayerNormalization",
        "QGemm",
        "QMoE",
        "ReduceSumInteger",
    )
)


def is_quantized(model: ir.Model) -> bool:
    """Whether the model is quantized, whether or not it can be inverted."""
    return any(is_quantize(n) or is_dequantize(n) or _is_integer_op(n) for n in model.graph.all_nodes())


def invert(model: ir.Model) -> tuple[ir.Model, Plan]:
    """The float model and the plan of a QDQ model; does not change the model."""
    _refuse(model)
    model = model.clone()
    edit.forget_names(model.graph)
    use_onnx_domain(model)
    remove_unused(model)  # a consumer whose output nothing uses does not count
    infer_shapes(model)
    read_before_moving(model)
    inverter = _Inverter(model.graph)
    inverter.run()
    remove_unused(model)
    if remaining := _qdq_nodes(model.graph):
        raise InputError(
            f"{remaining[0].op_type} {remaining[0].name!r} is not part of a Q/DQ pair, which is not supported"
        )
    return model, inverter.plan()


class _Inverter:
    """Removes the Q and DQ nodes of one graph, value by value, and records their qparams."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._quantized_io = _has_integer_io(graph)
        self._tensors: dict[ir.Value, QParams] = {}
        self._edges: dict[_Use, QParams] = {}
        self._stored: dict[_Use, Array] = {}

    def run(self) -> None:
        nodes = [node for node in self._graph if not is_quantize(node) and not is_dequantize(node)]
        outputs = [value for node in nodes for value in node.outputs]
        for value in [*self._graph.inputs, *self._graph.initializers.values(), *outputs]:
            if value.uses() and all(dequantizes_scales(node) for node, _ in value.uses()):
                continue  # part of the qparams of a weight
            array = edit.constant_of(value)
            if array is not None:
                self._constant(value, array)
            elif copies := dequantized_copies(value):
                self._integer_input(value, copies)
            else:
                self._activation(value, readers_of([value]))

    def plan(self) -> Plan:
        """The plan, once the graph is done and every name is final; a value without Q and DQ is float."""
        tensors: dict[str, Choice] = {}
        for value in (*self._graph.inputs, *(value for node in self._graph for value in node.outputs)):
            storage: Storage = self._tensors.get(value, IN_FLOAT32)
            if value in self._tensors or (value.dtype is _FLOAT and edit.constant_of(value) is None):
                source = ScaleSource.GIVEN if value in self._tensors else ScaleSource.NONE
                tensors[str(value.name)] = Choice(storage, Reason.RECORDED, _AS_READ, scale_from=source)
        return Plan(
            target="",
            precision=_AS_READ,
            tensors=tensors,
            edges={
                _edge(use): Choice(params, Reason.RECORDED, _AS_READ, scale_from=ScaleSource.GIVEN)
                for use, params in self._edges.items()
            },
            stored={_edge(use): array for use, array in self._stored.items()},
            quantized_io=self._quantized_io,
        )

    def _constant(self, value: ir.Value, array: Array) -> None:
        """Record a constant: integers with DQ nodes, or float values with Q nodes."""
        for copy in dequantized_copies(value):
            name = _QUANTIZED_SUFFIX.sub("", str(value.name)) or str(value.name)
            real = edit.add_initializer(self._graph, dequantize(array, copy.params), name=name, source=value)
            if not copy.only_uses:
                readers = ValueReaders(outputs=copy.readers.outputs, copies=copy.readers.copies)
                self._activation(self._identity(real, copy.first_node), readers)
            self._record_constant(real, [*real.uses(), *copy.readers.uses], copy.params, array)
        for copy in readers_of([value]).copies:
            if copy.only_uses:
                self._record_constant(value, copy.readers.uses, copy.params, quantize(array, copy.params))
            else:
                self._record_tensor(self._identity(value, copy.first_node), copy)

    def _record_constant(self, value: ir.Value, uses: Sequence[_Use], params: QParams, array: Array) -> None:
        for use in uses:
            self._record_edge(value, use, params)
            self._stored[use] = array

    def _integer_input(self, value: ir.Value, copies: list[QuantizedCopy]) -> None:
        """Record a quantized graph input; integers that another operator produces are an error."""
        dequantize_node, producer = copies[0].first_node, value.producer()
        if producer is not None:
            raise InputError(
                f"DequantizeLinear {dequantize_node.name!r} reads the output of {producer.op_type} {producer.name!r}; "
                "supported are the output of a QuantizeLinear, a constant, or a graph input"
            )
        refuse_other_consumers(value, f"input {value.name!r}")
        if len(copies) > 1:
            raise InputError(
                f"input {value.name!r}: DequantizeLinear {copies[1].first_node.name!r} has another scale or zero point "
                f"than DequantizeLinear {dequantize_node.name!r}; use one scale and zero point for both"
            )
        value.type = ir.TensorType(_FLOAT)
        self._record_tensor(value, copies[0])

    def _activation(self, value: ir.Value, readers: ValueReaders) -> None:
        """Record a value's qparams: of the tensor if all consumers read the same copy, else of each edge."""
        float_input = value.is_graph_input() and self._quantized_io
        if len(readers.copies) == 1 and not readers.uses and not readers.outputs and not float_input:
            self._record_tensor(value, readers.copies[0])
        else:
            self._connect(value, readers)

    def _record_tensor(self, value: ir.Value, copy: QuantizedCopy) -> None:
        self._tensors[value] = copy.params
        if copy.integer_output is not None:
            edit.replace_value(copy.integer_output, value)
        self._connect(value, copy.readers)

    def _connect(self, value: ir.Value, readers: ValueReaders) -> None:
        """Let these consumers read the value; its copies become edges, or values of their own."""
        for output in readers.outputs:
            if output is not value:
                edit.replace_value(output, self._as_output(value, output))
        for use in readers.uses:
            use[0].replace_input_with(use[1], value)
        for copy in readers.copies:
            if copy.only_uses:
                for use in copy.readers.uses:
                    self._record_edge(value, use, copy.params)
            else:
                self._record_tensor(self._identity(value, copy.first_node), copy)

    def _as_output(self, value: ir.Value, output: ir.Value) -> ir.Value:
        """A value for a float graph output: an Identity if the value itself would be emitted as integers."""
        producer = output.producer()
        if self._quantized_io and value in self._tensors and producer is not None:
            return self._identity(value, producer)
        return value

    def _record_edge(self, value: ir.Value, use: _Use, params: QParams) -> None:
        node, index = use
        node.replace_input_with(index, value)
        self._edges[node, index] = params

    def _identity(self, value: ir.Value, before: ir.Node) -> ir.Value:
        return edit.insert(
            before, "Identity", [value], source=value, replaces=[before], shape=edit.shape_of(value), dtype=_FLOAT
        )


def _edge(use: _Use) -> Edge:
    return Edge(str(use[0].name), use[1])


def _qdq_nodes(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph if is_quantize(node) or is_dequantize(node)]


def _has_integer_io(graph: ir.Graph) -> bool:
    """Whether an input or an output of the graph is quantized."""
    return any(dequantized_copies(value) for value in graph.inputs) or any(
        is_quantize(v.producer()) for v in graph.outputs
    )


def _is_integer_op(node: ir.Node) -> bool:
    return node.op_type in _INTEGER_OPS or node.op_type.startswith(_INTEGER_PREFIXES)


def _refuse(model: ir.Model) -> None:
    """Raise InputError for a model that a plan cannot describe."""
    for node in model.graph.all_nodes():
        if _is_integer_op(node):
            raise InputError(
                f"node {node.name!r} ({node.op_type}) computes on integers: only QDQ models are supported, with float "
                "operators between DequantizeLinear and QuantizeLinear"
            )
    for node in model.graph:
        if any(attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attr in node.attributes.values()):
            raise InputError(
                f"node {node.name!r} ({node.op_type}) has a subgraph, which is not supported in a quantized model"
            )
        scale = edit.constant_of(node.inputs[1]) if is_quantize(node) or is_dequantize(node) else None
        if scale is not None and scale.dtype == np.float16:
            raise InputError(f"{node.op_type} {node.name!r}: its float values are FLOAT16; only FLOAT is supported")
