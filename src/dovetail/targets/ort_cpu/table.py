"""The op table of ``ort-cpu``: what ONNX Runtime's CPU kernels support."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from dovetail.encoding import DType, Encoding
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import attribute, shape_of, why_not_pointwise, why_weight_not_matrix
from dovetail.op_support import (
    A8,
    A16,
    B32,
    F32,
    W4,
    W4_BLOCK,
    W4_EXPANDED,
    W8,
    OpSupport,
    Signature,
    Slot,
    bias,
    const,
    signature,
)

_KNOWN = "onnxruntime 1.31.1, optimized graphs of the shipped models read back"
_FOLLOWERS = (
    "Add",
    "AveragePool",
    "Clip",
    "Concat",
    "Gelu",
    "GlobalAveragePool",
    "GridSample",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mul",
    "Pad",
    "ReduceMean",
    "Relu",
    "Resize",
    "Sigmoid",
    "Softmax",
    "Sub",
    "Tanh",
)
# The other inputs of these operators are sizes, bounds or axes, not data.
_ONE_DATA_INPUT = frozenset(
    ("AveragePool", "Clip", "Gelu", "GlobalAveragePool", "HardSigmoid", "HardSwish", "LeakyRelu", "Pad", "ReduceMean")
) | frozenset(("Relu", "Resize", "Sigmoid", "Softmax", "Tanh"))


# Inputs and output may have different encodings: without an integer kernel an operator runs in float between them.
# Equal encodings come first, so that they are chosen where nothing else decides.
_COMBINATIONS = [(inputs, out) for inputs in (A8, A16, F32) for out in (A8, A16, F32)]
_COMBINATIONS.sort(key=lambda encodings: encodings[0] != encodings[1])
# Just below e^5, see _softmax_scale.
_SOFTMAX_LIMIT = 148


def _elementwise(one_input: bool) -> tuple[Signature, ...]:
    return tuple(Signature((Slot(inputs),), out, variadic=not one_input) for inputs, out in _COMBINATIONS)


def _linear(activation: Encoding, out: Encoding, weight: Encoding = W8) -> Signature:
    if activation == F32:
        return signature(F32, F32, F32, out=out)
    return signature(activation, const(weight), bias(B32), out=out)


def _narrow_weights(*encodings: Encoding) -> tuple[Signature, ...]:
    """4-bit weights, which are dequantized for a kernel in float."""
    return tuple(_linear(*pair, weight) for weight in encodings for pair in _COMBINATIONS if pair[0] == A16)


def _softmax_scale(node: ir.Node, dtype: DType, scale: float) -> float:
    """1/n for a whole n of at most e^5 x the number of elements in a row.

    QLinearSoftmax scales a row so that its largest exponential is the largest float32 / (e^5 x elements), and
    multiplies by floor(1 / scale) before it divides by the sum. A smaller scale makes that infinite, and the row
    becomes zero; if 1 / scale is not a whole number, all results are too small (onnxruntime 1.31.1: qlinear_softmax.cc,
    and measured).
    """
    shape = shape_of(node.inputs[0])
    if dtype is not DType.U8 or shape is None:
        return scale
    elements = shape[int(attribute(node, "axis", -1))]
    reciprocal = min(np.floor(np.float32(1) / np.float32(scale)), np.float32(_SOFTMAX_LIMIT * elements))
    rounded = np.float32(1) / np.float32(reciprocal)
    # Where 1 / (1 / n) is below n in float32, the next smaller scale gives n.
    return float(rounded if np.floor(np.float32(1) / rounded) == reciprocal else np.nextafter(rounded, np.float32(0)))


def _table() -> dict[str, OpSupport]:
    per_channel = (*(_linear(*encodings) for encodings in _COMBINATIONS), *_narrow_weights(W4))
    linear = (*per_channel, *_narrow_weights(W4_BLOCK, W4_EXPANDED))
    matmul = tuple(signature(inputs, inputs, out=out) for inputs, out in _COMBINATIONS)
    norm = tuple(signature(data, const(F32), const(F32), out=out) for data, out in _COMBINATIONS)
    same = tuple(signature(encoding, out=encoding) for encoding in (A8, A16, F32))
    table = {op: OpSupport(same, shares=(0,), known_from=_KNOWN) for op in DATA_MOVEMENT_OPS}
    table |= {
        op: OpSupport(_elementwise(op in _ONE_DATA_INPUT), stays_float_between_float=True, known_from=_KNOWN)
        for op in _FOLLOWERS
    }
    table["ConvTranspose"] = OpSupport(per_channel, known_from=_KNOWN)
    table["Gemm"] = OpSupport(linear, known_from=_KNOWN)
    table["Conv"] = OpSupport(tuple(_only_pointwise(row) for row in linear), known_from=_KNOWN)
    by_weight = tuple(replace(row, when=why_weight_not_matrix) for row in linear)
    table["MatMul"] = OpSupport((*by_weight, *matmul), known_from=_KNOWN)
    table["Softmax"] = replace(table["Softmax"], unclipped=True, output_scale=_softmax_scale)
    table["LayerNormalization"] = OpSupport(norm, stays_float_between_float=True, known_from=_KNOWN)
    return table


def _only_pointwise(row: Signature) -> Signature:
    return replace(row, when=why_not_pointwise) if any(slot.encoding.is_blocked for slot in row.inputs) else row


TABLE = _table()
