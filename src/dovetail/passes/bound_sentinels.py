"""Infinities and the like that only say "saturated", as numbers that leave a grid for the others.

Detectors mark anchors outside the picture with the largest float, which is added to box offsets in front of a sigmoid.
In integers it would be the range of all the anchors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import constant_of, is_op, scalar_of
from dovetail.model.movers import MOVERS
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

# No tensor of a trained network comes near this: such a constant is a mark, not a number.
SENTINEL = 1e30
# sigmoid(16) is 1 - 1e-7, and what is added to a mark by a network that refines boxes is a few units.
SATURATED = 16.0
_READS = ("Add", "Where", "Concat")


def bound_sentinels(model: ir.Model) -> PassRecord:
    """Bring marks in constants to 16, where only a Sigmoid or a Clip within that reads what is made of them."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        for index, value in enumerate(node.inputs if is_op(node, *_READS) else ()):
            array = constant_of(value)
            if value is None or array is None or array.dtype.kind != "f" or not _marks(array).any():
                continue
            where = origin_of(value).name
            reason = _why_not(node.outputs[0])
            if reason:
                declined.append(Site(where, reason))
                continue
            bounded = np.where(_marks(array), np.sign(array) * SATURATED, array).astype(array.dtype)
            name = f"{value.name}/bounded"
            node.replace_input_with(index, edit.add_initializer(model.graph, bounded, name=name, source=value))
            changed.append(Site(where, f"{int(_marks(array).sum())} marks brought to {SATURATED:g}"))
    return PassRecord("bound_sentinels", tuple(changed), tuple(declined))


def _marks(array: Array) -> Array:
    marks: Array = np.abs(array) >= np.float64(SENTINEL)  # in float64: float16 has no such number
    return marks


def _why_not(value: ir.Value) -> str:
    """What reads a value, through operators that only move it, and does not saturate; empty if all do."""
    if any(moved.is_graph_output() for moved in _moved(value)):
        return "it reaches an output of the graph"
    for moved in _moved(value):
        for reader, index in moved.uses():
            if not _moves(reader, index) and not _saturates(reader):
                return f"{reader.op_type} {reader.name!r} can tell how large it is"
    return ""


def _moved(value: ir.Value) -> Iterator[ir.Value]:
    yield value
    for reader, index in value.uses():
        if _moves(reader, index):
            for output in reader.outputs:
                yield from _moved(output)


def _moves(reader: ir.Node, index: int) -> bool:
    return index == 0 and is_op(reader, *MOVERS)


def _saturates(reader: ir.Node) -> bool:
    if is_op(reader, "Sigmoid"):
        return True
    bounds = [scalar_of(value) for value in reader.inputs[1:3]] if is_op(reader, "Clip") else []
    return len(bounds) == 2 and all(bound is not None and abs(bound) < SATURATED for bound in bounds)
