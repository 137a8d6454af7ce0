"""The op table of ``ort-cpu``: what ONNX Runtime's CPU kernels support."""

from __future__ import annotations

from dataclasses import replace

from dovetail.encoding import Encoding
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import why_weight_not_matrix
from dovetail.op_support import A8, A16, B32, F32, W8, OpSupport, Signature, Slot, bias, const, signature

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


def _elementwise(one_input: bool) -> tuple[Signature, ...]:
    return tuple(Signature((Slot(inputs),), out, variadic=not one_input) for inputs, out in _COMBINATIONS)


def _linear(activation: Encoding, out: Encoding) -> Signature:
    if activation == F32:
        return signature(F32, F32, F32, out=out)
    return signature(activation, const(W8), bias(B32), out=out)


def _table() -> dict[str, OpSupport]:
    linear = tuple(_linear(*encodings) for encodings in _COMBINATIONS)
    matmul = tuple(signature(inputs, inputs, out=out) for inputs, out in _COMBINATIONS if inputs != F32)
    norm = tuple(signature(data, const(F32), const(F32), out=out) for data, out in _COMBINATIONS)
    same = tuple(signature(encoding, out=encoding) for encoding in (A8, A16, F32))
    table = {op: OpSupport(same, shares=(0,), known_from=_KNOWN) for op in DATA_MOVEMENT_OPS}
    table |= {op: OpSupport(_elementwise(op in _ONE_DATA_INPUT), follows=True, known_from=_KNOWN) for op in _FOLLOWERS}
    table |= {op: OpSupport(linear, known_from=_KNOWN) for op in ("Conv", "ConvTranspose", "Gemm")}
    by_weight = tuple(replace(row, when=why_weight_not_matrix) for row in linear)
    table["MatMul"] = OpSupport((*by_weight, *matmul), known_from=_KNOWN)
    table["Softmax"] = replace(table["Softmax"], unclipped=True)
    table["LayerNormalization"] = OpSupport(norm, follows=True, known_from=_KNOWN)
    return table


TABLE = _table()
