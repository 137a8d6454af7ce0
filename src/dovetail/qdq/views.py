"""What a QDQ graph shows of a value: the readers of its real numbers, and of every form in which it is stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.errors import InputError
from dovetail.qdq.params import is_dequantize, is_quantize, qparams_of


@dataclass(slots=True, eq=False)
class ValueReaders:
    """Who sees a value as it is here: consumers' inputs, graph outputs, and the forms that are stored from it."""

    uses: list[tuple[ir.Node, int]] = field(default_factory=list)
    outputs: list[ir.Value] = field(default_factory=list)
    forms: list[QuantizedCopy] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class QuantizedCopy:
    """One stored form of a value: its numbers, who sees what is read back, and the graph output that is the integers.

    ``at`` is the first node that makes or reads the form; what replaces it goes there.
    """

    at: ir.Node
    params: QParams
    view: ValueReaders
    integer_output: ir.Value | None = None

    @property
    def is_seen(self) -> bool:
        return bool(self.view.uses) or not self.only_uses

    @property
    def only_uses(self) -> bool:
        """Whether the form can be said edge by edge."""
        return self.integer_output is None and not self.view.outputs and not self.view.forms


def view_of(values: Iterable[ir.Value]) -> ValueReaders:
    """Who sees values that hold the same real numbers; equal forms are one, except that each integer output has its
    own."""
    view = ValueReaders()
    stores: dict[tuple[QParams, ir.Value | None], list[ir.Node]] = {}
    for value in values:
        if value.is_graph_output():
            view.outputs.append(value)
        for node, index in value.uses():
            if is_quantize(node) and index == 0:
                integers = node.outputs[0]
                stores.setdefault((qparams_of(node), integers if integers.is_graph_output() else None), []).append(node)
            else:
                view.uses.append((node, index))
    for (params, output), nodes in stores.items():
        reads = [read.outputs[0] for node in nodes for read in _reads(node, params)]
        view.forms.append(QuantizedCopy(nodes[0], params, view_of(reads), output))
    view.forms = [form for form in view.forms if form.is_seen]
    return view


def read_forms(integers: ir.Value) -> list[QuantizedCopy]:
    """The ways in which DQs read an integer input or constant, equal ones as one; other readers are left out."""
    reads: dict[QParams, list[ir.Node]] = {}
    for node, index in integers.uses():
        if is_dequantize(node) and index == 0:
            reads.setdefault(qparams_of(node), []).append(node)
    forms = [QuantizedCopy(nodes[0], p, view_of([node.outputs[0] for node in nodes])) for p, nodes in reads.items()]
    return [form for form in forms if form.is_seen]


def refuse_other_readers(integers: ir.Value, what: str) -> None:
    """Refuse integers that anything but a DQ reads."""
    for node, index in integers.uses():
        if not is_dequantize(node) or index != 0:
            raise InputError(
                f"{what}: its integers are read by {node.op_type} {node.name!r}, only DequantizeLinear may read them"
            )


def _reads(quantize: ir.Node, params: QParams) -> list[ir.Node]:
    """The DQs behind a Q, which must have its numbers."""
    refuse_other_readers(quantize.outputs[0], f"QuantizeLinear {quantize.name!r}")
    reads = [node for node, _ in quantize.outputs[0].uses()]
    for node in reads:
        if qparams_of(node) != params:
            raise InputError(
                f"DequantizeLinear {node.name!r}: its numbers are not those of QuantizeLinear {quantize.name!r}, "
                "whose integers it reads"
            )
    return reads
