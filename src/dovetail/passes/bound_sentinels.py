"""Replace sentinels in constants (infinity, the largest float) that only saturate a Sigmoid by moderate values.

Detectors mark anchors outside the image with the largest float, which is added to box offsets before a Sigmoid. It
would set the quantization range of all anchors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import constant_of, is_op, scalar_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

# No tensor of a trained network comes near this: such a value is a sentinel, not data.
SENTINEL = 1e30
# sigmoid(16) is 1 - 1e-7, and box refinement adds only a few units to a sentinel.
SATURATED = 16.0
_CONSUMERS = ("Add", "Where", "Concat")


def bound_sentinels(model: ir.Model) -> PassRecord:
    """Set sentinels in constants to 16 or -16 where the only consumers are Sigmoid, or Clip to a smaller range."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        for index, value in enumerate(node.inputs if is_op(node, *_CONSUMERS) else ()):
            array = constant_of(value)
            if value is None or array is None or array.dtype.kind != "f" or not _is_sentinel(array).any():
                continue
            where = origin_of(value).name
            reason = _why_not(node.outputs[0])
            if reason:
                declined.append(Site(where, reason))
                continue
            bounded = np.where(_is_sentinel(array), np.sign(array) * SATURATED, array).astype(array.dtype)
            name = f"{value.name}/bounded"
            node.replace_input_with(index, edit.add_initializer(model.graph, bounded, name=name, source=value))
            changed.append(
                Site(where, f"{int(_is_sentinel(array).sum())} sentinels reduced to magnitude {SATURATED:g}")
            )
    return PassRecord("bound_sentinels", tuple(changed), tuple(declined))


def _is_sentinel(array: Array) -> Array:
    sentinels: Array = np.abs(array) >= np.float64(SENTINEL)  # in float64, because float16 cannot hold this value
    return sentinels


def _why_not(value: ir.Value) -> str:
    """Which consumer of a value, directly or through data movement, does not saturate it; empty if all do."""
    if any(moved.is_graph_output() for moved in _moved(value)):
        return "its values reach a graph output"
    for moved in _moved(value):
        for consumer, index in moved.uses():
            if not _moves(consumer, index) and not _saturates(consumer):
                return f"the result of {consumer.op_type} {consumer.name!r} depends on its magnitude"
    return ""


def _moved(value: ir.Value) -> Iterator[ir.Value]:
    yield value
    for consumer, index in value.uses():
        if _moves(consumer, index):
            for output in consumer.outputs:
                yield from _moved(output)


def _moves(node: ir.Node, index: int) -> bool:
    return index == 0 and is_op(node, *DATA_MOVEMENT_OPS)


def _saturates(node: ir.Node) -> bool:
    if is_op(node, "Sigmoid"):
        return True
    bounds = [scalar_of(value) for value in node.inputs[1:3]] if is_op(node, "Clip") else []
    return len(bounds) == 2 and all(bound is not None and abs(bound) < SATURATED for bound in bounds)
