"""The consumers of a value in a QDQ graph: of the value itself, and of every quantized copy of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.errors import InputError
from dovetail.qdq.params import is_dequantize, is_quantize, qparams_of


@dataclass(slots=True, eq=False)
class ValueReaders:
    """The consumers of a float value: node inputs, graph outputs, and the quantized copies that are made of it."""

    uses: list[tuple[ir.Node, int]] = field(default_factory=list)
    outputs: list[ir.Value] = field(default_factory=list)
    copies: list[QuantizedCopy] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class QuantizedCopy:
    """One quantized copy of a value: its qparams, the consumers after its DQ, and the graph output that is quantized.

    ``first_node``: the first Q or DQ node of the copy; nodes that replace the copy are inserted there.
    """

    first_node: ir.Node
    params: QParams
    readers: ValueReaders
    integer_output: ir.Value | None = None

    @property
    def is_used(self) -> bool:
        return bool(self.readers.uses) or not self.only_uses

    @property
    def only_uses(self) -> bool:
        """Whether only node inputs consume the copy, so that a plan can describe it as edges."""
        return self.integer_output is None and not self.readers.outputs and not self.readers.copies


def readers_of(values: Iterable[ir.Value]) -> ValueReaders:
    """The consumers of values that are equal; equal copies are merged, but each quantized graph output stays a copy of
    its own."""
    readers = ValueReaders()
    quantizes: dict[tuple[QParams, ir.Value | None], list[ir.Node]] = {}
    for value in values:
        if value.is_graph_output():
            readers.outputs.append(value)
        for node, index in value.uses():
            if is_quantize(node) and index == 0:
                output = node.outputs[0]
                key = (qparams_of(node), output if output.is_graph_output() else None)
                quantizes.setdefault(key, []).append(node)
            else:
                readers.uses.append((node, index))
    for (params, integer_output), nodes in quantizes.items():
        dequantized = [dequantize.outputs[0] for node in nodes for dequantize in _dequantizes(node, params)]
        readers.copies.append(QuantizedCopy(nodes[0], params, readers_of(dequantized), integer_output))
    readers.copies = [copy for copy in readers.copies if copy.is_used]
    return readers


def dequantized_copies(integers: ir.Value) -> list[QuantizedCopy]:
    """The copies that DQ nodes read from a quantized input or constant, one per set of qparams."""
    dequantizes: dict[QParams, list[ir.Node]] = {}
    for node, index in integers.uses():
        if is_dequantize(node) and index == 0:
            dequantizes.setdefault(qparams_of(node), []).append(node)
    copies = [
        QuantizedCopy(nodes[0], params, readers_of([node.outputs[0] for node in nodes]))
        for params, nodes in dequantizes.items()
    ]
    return [copy for copy in copies if copy.is_used]


def refuse_other_consumers(integers: ir.Value, where: str) -> None:
    """Raise InputError if anything but a DQ consumes quantized values."""
    for node, index in integers.uses():
        if not is_dequantize(node) or index != 0:
            raise InputError(
                f"{where}: its integers are read by {node.op_type} {node.name!r}; only DequantizeLinear may read them"
            )


def _dequantizes(quantize: ir.Node, params: QParams) -> list[ir.Node]:
    """The DQ nodes after a Q node, which must have the same qparams."""
    refuse_other_consumers(quantize.outputs[0], f"QuantizeLinear {quantize.name!r}")
    dequantizes = [node for node, _ in quantize.outputs[0].uses()]
    for node in dequantizes:
        if qparams_of(node) != params:
            raise InputError(
                f"DequantizeLinear {node.name!r}: its scale or zero point differs from that of QuantizeLinear "
                f"{quantize.name!r}, whose output it reads"
            )
    return dequantizes
