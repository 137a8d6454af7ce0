"""What ONNX Runtime's CPU kernels take: the op table of ``ort-cpu``."""

from __future__ import annotations

from dataclasses import replace

from dovetail.encoding import Encoding
from dovetail.model.edit import weight_is_matrix
from dovetail.model.movers import MOVERS
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
# Further inputs of these are sizes, bounds or axes, not data.
_ONE_DATA_INPUT = frozenset(
    ("AveragePool", "Clip", "Gelu", "GlobalAveragePool", "HardSigmoid", "HardSwish", "LeakyRelu", "Pad", "ReduceMean")
) | frozenset(("Relu", "Resize", "Sigmoid", "Softmax", "Tanh"))


# What goes in and what comes out need not be alike: what has no integer kernel runs in float between the two. What is
# alike stands first, so that it is taken where nothing else decides.
_MIXES = [(inside, out) for inside in (A8, A16, F32) for out in (A8, A16, F32)]
_MIXES.sort(key=lambda mix: mix[0] != mix[1])


def _elementwise(one_input: bool) -> tuple[Signature, ...]:
    return tuple(Signature((Slot(inside),), out, variadic=not one_input) for inside, out in _MIXES)


def _linear(inside: Encoding, out: Encoding) -> Signature:
    if inside == F32:
        return signature(F32, F32, F32, out=out)
    return signature(inside, const(W8), bias(B32), out=out)


def _table() -> dict[str, OpSupport]:
    linear = tuple(_linear(*mix) for mix in _MIXES)
    matmul = tuple(signature(inside, inside, out=out) for inside, out in _MIXES if inside != F32)
    norm = tuple(signature(inside, const(F32), const(F32), out=out) for inside, out in _MIXES)
    carried = tuple(signature(e, out=e) for e in (A8, A16, F32))
    table = {op: OpSupport(carried, shares=(0,), known_from=_KNOWN) for op in MOVERS}
    table |= {op: OpSupport(_elementwise(op in _ONE_DATA_INPUT), follows=True, known_from=_KNOWN) for op in _FOLLOWERS}
    table |= {op: OpSupport(linear, known_from=_KNOWN) for op in ("Conv", "ConvTranspose", "Gemm")}
    matrices = tuple(replace(one, when=weight_is_matrix) for one in linear)
    table["MatMul"] = OpSupport((*matrices, *matmul), known_from=_KNOWN)
    table["Softmax"] = replace(table["Softmax"], unclipped=True)
    table["LayerNormalization"] = OpSupport(norm, follows=True, known_from=_KNOWN)
    return table


TABLE = _table()
