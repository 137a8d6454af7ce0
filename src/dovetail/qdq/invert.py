"""QDQ ONNX graph, ours or another tool's -> (float graph, plan), whose emission gives the same numbers to the bit.

Where the graph stores more than a plan can say of one value (a pair behind a pair behind a pair, two stored outputs),
the float graph gets an Identity, so that each storage has a value of its own.
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
from dovetail.qdq.params import is_dequantize, is_quantize
from dovetail.qdq.views import QuantizedCopy, ValueReaders, read_forms, refuse_other_readers, view_of
from dovetail.storage import IN_FLOAT32, Choice, Plan, Reason, ScaleSource, Storage

_AS_READ = "as in the model"
_FLOAT = ir.DataType.FLOAT
_Use = tuple[ir.Node, int]
# What emitters put behind the name of a constant when they store it: ours, and ONNX Runtime's quantizers.
_STORED_SUFFIX = re.compile(r"(__q|_quantized|_DQ_Q\d+)(\.\d+)?$")
# Operators that compute on integers, or choose their own numbers; a plan says nothing of them.
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
    """Whether the model was quantized already, in a form that can be inverted or not."""
    return any(is_quantize(n) or is_dequantize(n) or _is_integer_op(n) for n in model.graph.all_nodes())


def invert(model: ir.Model) -> tuple[ir.Model, Plan]:
    """The float model that a QDQ model stands for, and how it stores it; the model given is not changed."""
    _refuse(model)
    model = model.clone()
    edit.forget_names(model.graph)
    for node in _qdq_nodes(model.graph):
        node.domain = ""
    remove_unused(model)  # a reader that nothing depends on does not count
    infer_shapes(model)
    read_before_moving(model)
    inverter = _Inverter(model.graph)
    inverter.run()
    remove_unused(model)
    if left := _qdq_nodes(model.graph):
        raise ValueError(f"{left[0].op_type} {left[0].name!r} was not taken out of the graph")
    return model, inverter.plan()


class _Inverter:
    """Takes the Q and DQ nodes out of one graph, value by value, and writes down what they said."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._quantized_io = _has_integer_io(graph)
        self._tensors: dict[ir.Value, QParams] = {}
        self._edges: dict[_Use, QParams] = {}
        self._stored: dict[_Use, Array] = {}

    def run(self) -> None:
        nodes = [node for node in self._graph if not is_quantize(node) and not is_dequantize(node)]
        made = [value for node in nodes for value in node.outputs]
        for value in [*self._graph.inputs, *self._graph.initializers.values(), *made]:
            array = edit.constant_of(value)
            if array is not None:
                self._constant(value, array)
            elif forms := read_forms(value):
                self._integer_input(value, forms)
            else:
                self._place(value, view_of([value]))

    def plan(self) -> Plan:
        """The plan, once the graph is done and every name final; what nothing was said of is float."""
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
        """A constant: integers that DQs read, or real numbers that Qs store."""
        for form in read_forms(value):
            name = _STORED_SUFFIX.sub("", str(value.name)) or str(value.name)
            real = edit.add_initializer(self._graph, dequantize(array, form.params), name=name, source=value)
            if not form.only_uses:
                view = ValueReaders(outputs=form.view.outputs, forms=form.view.forms)
                self._place(self._identity(real, form.at), view)
            self._keep_constant(real, [*real.uses(), *form.view.uses], form.params, array)
        for form in view_of([value]).forms:
            if form.only_uses:
                self._keep_constant(value, form.view.uses, form.params, quantize(array, form.params))
            else:
                self._store(self._identity(value, form.at), form)

    def _keep_constant(self, value: ir.Value, uses: Sequence[_Use], params: QParams, array: Array) -> None:
        for use in uses:
            self._see(value, use, params)
            self._stored[use] = array

    def _integer_input(self, value: ir.Value, forms: list[QuantizedCopy]) -> None:
        """Integers that are not constant: those of an input; what computes on integers is refused."""
        reader, producer = forms[0].at, value.producer()
        if producer is not None:
            raise InputError(
                f"DequantizeLinear {reader.name!r}: it reads integers made by {producer.op_type} {producer.name!r}, "
                "which only works on floats in a QDQ model"
            )
        refuse_other_readers(value, f"input {value.name!r}")
        if len(forms) > 1:
            raise InputError(f"input {value.name!r}: DequantizeLinear {forms[1].at.name!r} reads it with other numbers")
        value.type = ir.TensorType(_FLOAT)
        self._store(value, forms[0])

    def _place(self, value: ir.Value, view: ValueReaders) -> None:
        """Say how a value is stored: by itself where everyone sees it in one form, else edge by edge."""
        float_input = value.is_graph_input() and self._quantized_io
        if len(view.forms) == 1 and not view.uses and not view.outputs and not float_input:
            self._store(value, view.forms[0])
        else:
            self._show(value, view)

    def _store(self, value: ir.Value, form: QuantizedCopy) -> None:
        self._tensors[value] = form.params
        if form.integer_output is not None:
            edit.replace_value(form.integer_output, value)
        self._show(value, form.view)

    def _show(self, value: ir.Value, view: ValueReaders) -> None:
        """Let everyone in a view see the value, each of its forms on the edges or as a value of its own."""
        for output in view.outputs:
            if output is not value:
                edit.replace_value(output, self._as_output(value, output))
        for use in view.uses:
            use[0].replace_input_with(use[1], value)
        for form in view.forms:
            if form.only_uses:
                for use in form.view.uses:
                    self._see(value, use, form.params)
            else:
                self._store(self._identity(value, form.at), form)

    def _as_output(self, value: ir.Value, output: ir.Value) -> ir.Value:
        """A value that can stand at a float output: a stored one would be emitted as integers."""
        reader = output.producer()
        if self._quantized_io and value in self._tensors and reader is not None:
            return self._identity(value, reader)
        return value

    def _see(self, value: ir.Value, use: _Use, params: QParams) -> None:
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
    """Whether an input or an output of the graph holds stored integers."""
    return any(read_forms(value) for value in graph.inputs) or any(is_quantize(v.producer()) for v in graph.outputs)


def _is_integer_op(node: ir.Node) -> bool:
    return node.op_type in _INTEGER_OPS or node.op_type.startswith(_INTEGER_PREFIXES)


def _refuse(model: ir.Model) -> None:
    """Refuse what no plan can say."""
    for node in model.graph.all_nodes():
        if _is_integer_op(node):
            raise InputError(
                f"node {node.name!r} ({node.op_type}) computes on integers itself: only the QDQ form, with float "
                "operators between DequantizeLinear and QuantizeLinear, can be read"
            )
    for node in model.graph:
        if any(attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attr in node.attributes.values()):
            raise InputError(f"node {node.name!r} ({node.op_type}) has a subgraph: it cannot be read when quantized")
        scale = edit.constant_of(node.inputs[1]) if is_quantize(node) or is_dequantize(node) else None
        if scale is not None and scale.dtype == np.float16:
            raise InputError(f"{node.op_type} {node.name!r}: its real values are FLOAT16, a plan is about FLOAT")
