"""One Quantize/Dequantize pair, or stored constant, made again beside the old one, for one edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, shape_of
from dovetail.qdq.params import is_quantize

# From opset 23 on a Dequantize may say what it gives; without it, that is the type of its scale.
_TYPE = "output_dtype"


@dataclass(frozen=True, slots=True, eq=False)
class QdqPair:
    """A Dequantize, what it reads, and the Quantize that made it; None where the integers are a constant."""

    read: ir.Node
    stored: ir.Value
    store: ir.Node | None
    scale: Array

    @property
    def per_channel(self) -> bool:
        return self.scale.size > 1

    @property
    def axis(self) -> int:
        """The axis of the scales, from the front."""
        rank = len(shape_of(self.read.outputs[0]) or ())
        axis = int(attribute(self.read, "axis", 1))
        return axis + rank if axis < 0 else axis


def pair_of(read: ir.Node) -> QdqPair | str:
    """The pair that a Dequantize ends, or why it cannot be made again."""
    stored, scale = read.inputs[0], constant_of(read.inputs[1])
    if stored is None or scale is None:
        return "its scale is not a constant"
    if scale.dtype not in (np.float16, np.float32):
        return f"its scale is {scale.dtype}"
    said = attribute(read, _TYPE, 0)
    if said and ir.DataType(said).numpy() != scale.dtype:
        return "it gives another type than that of its scale"
    store = stored.producer()
    if not is_quantize(store):
        return QdqPair(read, stored, None, scale) if constant_of(stored) is not None else "its integers are an input"
    written = constant_of(store.inputs[1]) if store is not None else None
    if written is None or not np.array_equal(written.astype(np.float32), scale.astype(np.float32)):
        return "its Quantize and its Dequantize have different scales"
    return QdqPair(read, stored, store, scale)


def insert_read(
    before: ir.Node, pair: QdqPair, stored: ir.Value, scale: ir.Value, *, axis: int | None = None, like: ir.Value | None
) -> ir.Value:
    """A Dequantize with other integers or another scale; ``like``: the value whose shape and type it has."""
    result = pair.read.outputs[0] if like is None else like
    return edit.insert(
        before,
        "DequantizeLinear",
        [stored, scale, *pair.read.inputs[2:]],
        attributes={k: v for k, v in _attributes(pair.read, axis).items() if k != _TYPE},  # that of its new scale
        source=pair.read.outputs[0],
        replaces=[pair.read],
        shape=shape_of(result),
        dtype=scale.dtype,
        domain=pair.read.domain,
    )


def insert_store(
    before: ir.Node, pair: QdqPair, value: ir.Value, scale: ir.Value, *, axis: int | None = None
) -> ir.Value:
    """The Quantize of a pair again, for another value or scale."""
    if pair.store is None:
        raise ValueError(f"{pair.read.name!r} reads a constant")
    return edit.insert(
        before,
        "QuantizeLinear",
        [value, scale, *pair.store.inputs[2:]],
        attributes=_attributes(pair.store, axis),
        source=pair.stored,
        replaces=[pair.store],
        shape=shape_of(value),
        dtype=pair.stored.dtype,
        domain=pair.store.domain,
    )


def new_scale(pair: QdqPair, scale: Array, tag: str) -> ir.Value:
    """A scale of its own, whoever reads the old one."""
    old = pair.read.inputs[1]
    if old is None:
        raise ValueError(f"{pair.read.name!r} has no scale")
    return edit.add_initializer(edit.graph_of(pair.read), scale, name=f"{old.name}/{tag}", source=old)


def _attributes(node: ir.Node, axis: int | None) -> dict[str, Any]:
    kept: dict[str, Any] = dict(node.attributes)
    return kept if axis is None else {**kept, "axis": axis}
