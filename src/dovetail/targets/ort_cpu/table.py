"""What ONNX Runtime's CPU kernels take: the op table of ``ort-cpu``."""

from __future__ import annotations

from dovetail.encoding import Encoding
from dovetail.target import A8, A16, B32, F32, W8, OpSupport, Signature, Slot, bias, const, signature

_KNOWN = "onnxruntime 1.31.1, optimized graphs of the shipped models read back"
CARRIERS = (
    "DepthToSpace",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "Identity",
    "MaxPool",
    "Pad",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
)
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
    ("AveragePool", "Clip", "Gelu", "GlobalAveragePool", "HardSigmoid", "HardSwish", "LeakyRelu", "ReduceMean")
) | frozenset(("Relu", "Resize", "Sigmoid", "Softmax", "Tanh"))


def _elementwise(one_input: bool) -> tuple[Signature, ...]:
    def over(inside: Encoding, out: Encoding) -> Signature:
        return Signature((Slot(inside),), out, variadic=not one_input)

    return (over(A8, A8), over(A16, A16), over(A8, F32), over(A16, F32), over(F32, F32))


def _linear() -> tuple[Signature, ...]:
    integer = [signature(a, const(W8), bias(B32), out=out) for a in (A8, A16) for out in (a, F32)]
    return (*integer, signature(F32, F32, F32, out=F32))


def _table() -> dict[str, OpSupport]:
    matmul = tuple(signature(a, a, out=out) for a in (A8, A16) for out in (a, F32))
    norm = (*(signature(a, const(F32), const(F32), out=a) for a in (A8, A16)), signature(F32, F32, F32, out=F32))
    carried = tuple(signature(e, out=e) for e in (A8, A16, F32))
    table = {op: OpSupport(carried, shares=(0,), known_from=_KNOWN) for op in CARRIERS}
    table |= {op: OpSupport(_elementwise(op in _ONE_DATA_INPUT), follows=True, known_from=_KNOWN) for op in _FOLLOWERS}
    table |= {op: OpSupport(_linear(), known_from=_KNOWN) for op in ("Conv", "ConvTranspose", "Gemm")}
    table["MatMul"] = OpSupport((*_linear(), *matmul), known_from=_KNOWN)
    table["LayerNormalization"] = OpSupport(norm, follows=True, known_from=_KNOWN)
    return table


TABLE = _table()
