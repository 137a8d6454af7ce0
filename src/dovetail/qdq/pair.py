"""Copies of a Q/DQ pair, or of the DQ of a constant, with another scale or input, for one edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, shape_of
from dovetail.qdq.params import is_quantize

# From opset 23 on DequantizeLinear has this attribute; without it, its output has the dtype of its scale.
_OUTPUT_DTYPE = "output_dtype"


@dataclass(frozen=True, slots=True, eq=False)
class QdqPair:
    """A DequantizeLinear, its input, and the QuantizeLinear that produces it; None where the input is a constant."""

    dequantize: ir.Node
    quantized: ir.Value
    quantize: ir.Node | None
    scale: Array

    @property
    def per_channel(self) -> bool:
        return self.scale.size > 1

    @property
    def axis(self) -> int:
        """The axis of the scales, as a non-negative index."""
        rank = len(shape_of(self.dequantize.outputs[0]) or ())
        axis = int(attribute(self.dequantize, "axis", 1))
        return axis + rank if axis < 0 else axis


def pair_of(dequantize: ir.Node) -> QdqPair | str:
    """The Q/DQ pair that ends in a DequantizeLinear, or why it cannot be copied."""
    quantized, scale = dequantize.inputs[0], constant_of(dequantize.inputs[1])
    if quantized is None or scale is None:
        return "its scale is not a constant"
    if scale.dtype not in (np.float16, np.float32):
        return f"its scale is {scale.dtype}"
    output_dtype = attribute(dequantize, _OUTPUT_DTYPE, 0)
    if output_dtype and ir.DataType(output_dtype).numpy() != scale.dtype:
        return "its output_dtype differs from the dtype of its scale"
    quantize = quantized.producer()
    if not is_quantize(quantize):
        if constant_of(quantized) is None:
            return "its input is neither a constant nor the output of QuantizeLinear"
        return QdqPair(dequantize, quantized, None, scale)
    quantize_scale = constant_of(quantize.inputs[1]) if quantize is not None else None
    if quantize_scale is None or not np.array_equal(quantize_scale.astype(np.float32), scale.astype(np.float32)):
        return "its QuantizeLinear has another scale"
    return QdqPair(dequantize, quantized, quantize, scale)


def insert_dequantize(
    before: ir.Node,
    pair: QdqPair,
    quantized: ir.Value,
    scale: ir.Value,
    *,
    axis: int | None = None,
    like: ir.Value | None,
) -> ir.Value:
    """A copy of a pair's DequantizeLinear with another input or scale; ``like``: the value whose shape it has."""
    result = pair.dequantize.outputs[0] if like is None else like
    return edit.insert(
        before,
        "DequantizeLinear",
        [quantized, scale, *pair.dequantize.inputs[2:]],
        # Without output_dtype, the output has the dtype of the new scale.
        attributes={k: v for k, v in _attributes(pair.dequantize, axis).items() if k != _OUTPUT_DTYPE},
        source=pair.dequantize.outputs[0],
        replaces=[pair.dequantize],
        shape=shape_of(result),
        dtype=scale.dtype,
        domain=pair.dequantize.domain,
    )


def insert_quantize(
    before: ir.Node, pair: QdqPair, value: ir.Value, scale: ir.Value, *, axis: int | None = None
) -> ir.Value:
    """A copy of a pair's QuantizeLinear with another input or scale."""
    if pair.quantize is None:
        raise ValueError(f"DequantizeLinear {pair.dequantize.name!r} reads a constant, so there is no QuantizeLinear")
    return edit.insert(
        before,
        "QuantizeLinear",
        [value, scale, *pair.quantize.inputs[2:]],
        attributes=_attributes(pair.quantize, axis),
        source=pair.quantized,
        replaces=[pair.quantize],
        shape=shape_of(value),
        dtype=pair.quantized.dtype,
        domain=pair.quantize.domain,
    )


def new_scale(pair: QdqPair, scale: Array, tag: str) -> ir.Value:
    """A new scale initializer; the old one may have other consumers."""
    old = pair.dequantize.inputs[1]
    if old is None:
        raise ValueError(f"DequantizeLinear {pair.dequantize.name!r} has no scale")
    return edit.add_initializer(edit.graph_of(pair.dequantize), scale, name=f"{old.name}/{tag}", source=old)


def _attributes(node: ir.Node, axis: int | None) -> dict[str, Any]:
    kept: dict[str, Any] = dict(node.attributes)
    return kept if axis is None else {**kept, "axis": axis}
