"""Move a Transpose between a Q/DQ pair and a MatMul or Gemm before the Q, or fold it into a quantized weight.

``Q -> DQ -> Transpose -> MatMul`` becomes ``Transpose -> Q -> DQ -> MatMul``; the axis of per-channel scales is
permuted accordingly. TensorRT-RTX 1.7.1.116 fuses both forms; the pass is for TensorRT (the standard SDK), which
requires the DQ directly before the MatMul (NVIDIA/Model-Optimizer, pull request 1289).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op
from dovetail.model.layout import Step, insert_step, perm_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site
from dovetail.qdq.pair import QdqPair, insert_dequantize, insert_quantize, pair_of
from dovetail.qdq.params import is_dequantize

_MATMULS = ("MatMul", "Gemm")


def transpose_before_quantize(model: ir.Model) -> PassRecord:
    """Move the Transpose before the Q/DQ pair of every activation that a MatMul or Gemm reads through a Transpose."""
    return _run(model, "transpose_before_quantize", constant=False, rewrite=_transposed_activation)


def transpose_stored_weights(model: ir.Model) -> PassRecord:
    """Transpose the integers of every quantized weight that a MatMul or Gemm reads through a Transpose."""
    return _run(model, "transpose_stored_weights", constant=True, rewrite=_transposed_weight)


def _run(
    model: ir.Model, name: str, *, constant: bool, rewrite: Callable[[QdqPair, ir.Node, tuple[int, ...]], ir.Value]
) -> PassRecord:
    changed: list[Site] = []
    declined: list[Site] = []
    rewritten: dict[tuple[ir.Node, ir.Node], ir.Value] = {}
    for node in [node for node in model.graph if is_op(node, *_MATMULS)]:
        for index in (0, 1):
            transpose, dequantize = _above(node.inputs[index])
            if transpose is None or dequantize is None:
                continue
            pair, where = pair_of(dequantize), origin_of(transpose.outputs[0]).name
            if not isinstance(pair, str) and (pair.quantize is None) is not constant:
                continue
            why = pair if isinstance(pair, str) else _why_not(pair, transpose)
            if isinstance(pair, str) or why:
                message = f"the Transpose after DequantizeLinear {dequantize.name!r} is kept: {why}"
                declined.append(Site(where, message))
                continue
            if (dequantize, transpose) not in rewritten:
                rewritten[dequantize, transpose] = rewrite(pair, transpose, perm_of(transpose))
            node.replace_input_with(index, rewritten[dequantize, transpose])
            edit.remove_dead(model.graph, [transpose])
            axis = f", scales now on axis {perm_of(transpose).index(pair.axis)}" if pair.per_channel else ""
            to = "folded into the quantized weight" if constant else "moved before QuantizeLinear"
            changed.append(Site(where, f"Transpose {to}{axis}"))
    return PassRecord(name, tuple(changed), tuple(declined))


def _above(value: ir.Value | None) -> tuple[ir.Node | None, ir.Node | None]:
    """The Transpose that produces a value, and the DequantizeLinear before it, with or without a Cast in between."""
    transpose = None if value is None else value.producer()
    if transpose is None or not is_op(transpose, "Transpose") or transpose.inputs[0] is None:
        return None, None
    above = transpose.inputs[0].producer()
    if above is not None and is_op(above, "Cast") and above.inputs[0] is not None:
        above = above.inputs[0].producer()
    return transpose, above if is_dequantize(above) else None


def _why_not(pair: QdqPair, transpose: ir.Node) -> str:
    if transpose.inputs[0] is not pair.dequantize.outputs[0]:
        return "a Cast is between them, which fold_casts could not remove"
    if attribute(pair.dequantize, "block_size", 0):
        return "its scales are per block"
    if edit.shape_of(transpose.outputs[0]) is None:
        return "its shape is not known"
    return ""


def _transposed_activation(pair: QdqPair, transpose: ir.Node, perm: tuple[int, ...]) -> ir.Value:
    quantize, scale = pair.quantize, pair.dequantize.inputs[1]
    if quantize is None or quantize.inputs[0] is None or quantize.inputs[1] is None or scale is None:
        raise ValueError(f"DequantizeLinear {pair.dequantize.name!r} is not part of a Q/DQ pair")
    axis = perm.index(pair.axis) if pair.per_channel else None
    value = insert_step(quantize, quantize.inputs[0], Step("Transpose", perm), replaces=[transpose])
    quantized = insert_quantize(quantize, pair, value, quantize.inputs[1], axis=axis)
    return insert_dequantize(pair.dequantize, pair, quantized, scale, axis=axis, like=transpose.outputs[0])


def _transposed_weight(pair: QdqPair, transpose: ir.Node, perm: tuple[int, ...]) -> ir.Value:
    array, scale = constant_of(pair.quantized), pair.dequantize.inputs[1]
    if array is None or scale is None:
        raise ValueError(f"DequantizeLinear {pair.dequantize.name!r} does not read a constant")
    axis = perm.index(pair.axis) if pair.per_channel else None
    graph = edit.graph_of(transpose)
    transposed = np.ascontiguousarray(array.transpose(perm))
    quantized = edit.add_initializer(graph, transposed, name=f"{pair.quantized.name}/turned", source=pair.quantized)
    return insert_dequantize(pair.dequantize, pair, quantized, scale, axis=axis, like=transpose.outputs[0])
