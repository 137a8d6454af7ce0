"""A float graph in which every planned Q/DQ pair can be switched on at run time: any part of a plan in one session."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import Array, QParams
from dovetail.model.edit import add_initializer, constant_of, forget_names, insert, shape_of
from dovetail.model.segments import subgraphs_of
from dovetail.numerics.affine import dequantize, quantize
from dovetail.qdq.switch import SWITCH, with_pair
from dovetail.storage import Choice, Plan

# The name of what a graph output is, read through its own Q/DQ pair.
SWITCHED_OUTPUT = "{}/switched"


class ElementSwitches:
    """Inserts switched Q/DQ pairs into a float graph; ``tensors`` and ``edges`` map to the number of their switch."""

    def __init__(self, model: ir.Model, plan: Plan, tensors: Mapping[str, int], edges: Mapping[Edge, int]) -> None:
        self._graph, self._plan, self._tensors, self._edges = model.graph, plan, tensors, edges
        self._flags: dict[int, ir.Value] = {}
        self._pairs: dict[ir.Value, ir.Value] = {}
        forget_names(self._graph)

    def insert(self, outputs: Collection[str]) -> frozenset[int]:
        """Edit the graph in place, and return the numbers of the switches that it has.

        ``outputs``: those of its outputs that a caller sees. If such a tensor is quantized, its pair is a further
        output, because other nodes have pairs of their own.
        """
        for node in list(self._graph):
            for index, value in enumerate(node.inputs):
                if value is not None:
                    node.replace_input_with(index, self._as_read(node, index, value))
            self._in_subgraphs(node)
        for value in list(self._graph.outputs):
            if value.name in outputs and value.name in self._tensors:
                self._add_output(value)
        return frozenset(self._flags)

    def _as_read(self, node: ir.Node, index: int, value: ir.Value) -> ir.Value:
        """What a node reads on one edge: the value through the pair of its tensor, then through that of the edge."""
        edge = Edge(node.name or "", index)
        array, number = constant_of(value), self._edges.get(edge)
        if array is None:
            value = self._of_tensor(node, value)
        if number is None:
            return value
        params = _params(self._plan.edges[edge])
        if array is None:
            return self._selected(node, number, with_pair(node, value, params), value)
        real = dequantize(self._integers(edge, array, params), params).astype(array.dtype)
        constant = add_initializer(self._graph, real, name=f"{value.name}/quantized", source=value)
        return self._selected(node, number, constant, value)

    def _in_subgraphs(self, node: ir.Node) -> None:
        """Let the nodes inside a node's subgraphs read tensors of the graph through their pairs; they have no edges."""
        for inner in [inner for graph in subgraphs_of(node) for inner in graph.all_nodes()]:
            for index, value in enumerate(inner.inputs):
                if value is not None and value.graph is self._graph and constant_of(value) is None:
                    inner.replace_input_with(index, self._of_tensor(node, value))

    def _of_tensor(self, before: ir.Node, value: ir.Value) -> ir.Value:
        """A tensor through its own pair, if it has one; made before its first consumer."""
        number = self._tensors.get(value.name or "")
        if number is None:
            return value
        if value not in self._pairs:
            params = _params(self._plan.tensors[value.name or ""])
            self._pairs[value] = self._selected(before, number, with_pair(before, value, params), value)
        return self._pairs[value]

    def _add_output(self, value: ir.Value) -> None:
        """Append a node that gives what a caller sees of a quantized output."""
        end = ir.node("Identity", [value], name=f"{value.name}/end")
        self._graph.append(end)
        output = end.outputs[0]
        output.name, output.type, output.shape = SWITCHED_OUTPUT.format(value.name), value.type, value.shape
        end.replace_input_with(0, self._of_tensor(end, value))
        self._graph.outputs.append(output)

    def _selected(self, before: ir.Node, number: int, quantized: ir.Value, exact: ir.Value) -> ir.Value:
        if number not in self._flags:
            flag = ir.Value(name=SWITCH.format(number), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape(()))
            self._graph.inputs.append(flag)
            self._flags[number] = flag
        inputs = [self._flags[number], quantized, exact]
        return insert(before, "Where", inputs, source=exact, replaces=[], shape=shape_of(exact))

    def _integers(self, edge: Edge, array: Array, params: QParams) -> Array:
        integers = self._plan.stored.get(edge)
        return quantize(array, params) if integers is None else integers


def flags(on: Collection[int], numbers: Collection[int]) -> dict[str, Array]:
    """The values of the switches with these numbers; those in ``on`` are turned on."""
    return {SWITCH.format(number): np.array(number in on) for number in numbers}


def _params(choice: Choice) -> QParams:
    if not isinstance(choice.storage, QParams):
        raise TypeError("only a quantized tensor or edge has a switch")
    return choice.storage
