"""What the HTP compiler keeps in integers: the op table, by what the chip can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from dovetail.encoding import DType, Encoding
from dovetail.model.edit import attribute, shape_of, weight_is_matrix
from dovetail.model.movers import MOVERS
from dovetail.op_support import (
    A8,
    A16,
    B32,
    F16,
    F32,
    FP16,
    W8,
    W8A8,
    W8A16,
    Chain,
    FixedQParams,
    OpSupport,
    OpTable,
    Signature,
    Slot,
    bias,
    computing_in,
    const,
    signature,
)
from dovetail.passes.matmul_of_transposed import EQUATIONS
from dovetail.targets.htp.chips import Chip

_KNOWN = "onnxruntime-qnn 2.7.0 (QAIRT 2.51), soc 43, compiled graph dumped"
S16 = Encoding(DType.S16, symmetric=True)

_ONE_INPUT = (
    "Abs",
    "AveragePool",
    "Clip",
    "Cos",
    "Exp",
    "Gelu",
    "GlobalAveragePool",
    "HardSwish",
    "LeakyRelu",
    "Neg",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceSum",
    "Relu",
    "Sin",
    "Softmax",
    "Sqrt",
)
# At 16 bit the provider replaces other numbers by these, without a word; at 8 bit it keeps what is given.
_FIXED = {
    "HardSigmoid": (FixedQParams(DType.U16, 1 / 65536, 0),),
    "Sigmoid": (FixedQParams(DType.U16, 1 / 65536, 0),),
    "Tanh": (FixedQParams(DType.U16, 1 / 32768, 32768),),
}
# Refused, in float too (onnxruntime-qnn 2.7.0, soc 43): "output shape must be static", or "not supported by QNN EP".
OUTSIDE = dict.fromkeys(
    ("Compress", "NonMaxSuppression", "NonZero", "Unique"), "HTP has no tensors whose size depends on the data"
)
_MANY_INPUTS = (
    *("Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"),
    *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
)


def htp_table(target: str, chip: Chip) -> OpTable:
    """What one chip accepts, for a target of this name."""
    floats = (FP16,) if chip.has_float16 else ()
    in_float = F16 if chip.has_float16 else F32
    return OpTable(
        target=target,
        ops=computing_in(in_float, _ops(chip)),
        precisions={p.name: p for p in (W8A16, W8A8, *floats)},
        chains=(Chain(("Conv", "Relu")), Chain(("Gemm", "Relu"))),
        max_rank=5,
        unsupported=OUTSIDE,
        unavailable={} if chip.has_float16 else {FP16.name: chip.no_float16},
        float_encoding=in_float,
        runs_float_between=chip.has_float16,
    )


def _ops(chip: Chip) -> Mapping[str, OpSupport]:
    table = {op: OpSupport(_same(1), shares=(0,), known_from=_KNOWN) for op in MOVERS}
    table |= {op: OpSupport(_same(1), known_from=_KNOWN) for op in _ONE_INPUT}
    table |= {op: OpSupport(_same(0), known_from=_KNOWN) for op in _MANY_INPUTS}
    # Nearest is kept in integers only where both ends have the same numbers, and linear stays between its neighbours.
    table["Resize"] = OpSupport(_resize(), shares=(0,), known_from=_KNOWN)
    # Where its inputs have other numbers than its output, behind LayerNorm, Slice and Reshape an 8-bit one copies their
    # bytes all the same (2 to 24 dB), and nothing is said.
    table["Concat"] = OpSupport(_same(0), shares=None, joins=True, known_from=_KNOWN)
    linear = (*(signature(a, const(W8), bias(B32), out=a) for a in (A8, A16)), signature(F32, F32, F32, out=F32))
    table |= {op: OpSupport(linear, known_from=_KNOWN) for op in ("Conv", "ConvTranspose", "Gemm")}
    products = (*_constant_matmul(), *_second_operands(chip), signature(F32, F32, out=F32))
    table["MatMul"] = OpSupport(products, known_from=_KNOWN)
    transposed = tuple(replace(one, when=_is_transposed_product) for one in _second_operands(chip))
    table["Einsum"] = OpSupport((*transposed, signature(F32, F32, out=F32)), known_from=_KNOWN)
    table["LayerNormalization"] = OpSupport(_layer_norm(chip), known_from=_KNOWN)
    # Wrong without a word otherwise: an 8-bit one cuts its output scale down to a multiple of 2^-16 (14 dB at 5.96
    # steps, 53 at 6), a 16-bit one is off where its input scale is below 3e-6 (18 dB).
    table["Softmax"] = replace(
        table["Softmax"], unclipped=True, least_scale={DType.U16: 2**-17}, scale_step={DType.U8: 2**-16}
    )
    for op, numbers in _FIXED.items():
        table[op] = OpSupport(_same(1), fixed=numbers, known_from=_KNOWN)
    # What it pads with is stored in the numbers of its input: a value outside their range is clipped, without a word.
    table["Pad"] = OpSupport(_same(1), shares=(0, 2), known_from=_KNOWN)
    table["Where"] = OpSupport(_same(3), known_from=_KNOWN)
    # At 16 bit it is -12 to 84 dB from the simulation, by the numbers it is given, and nothing is said.
    table["Log"] = OpSupport((signature(A8, out=A8), signature(F32, out=F32)), known_from=_KNOWN)
    table["ScatterElements"] = OpSupport(_scatter(), shares=(0, 2), known_from=_KNOWN)
    table["GridSample"] = OpSupport(
        (*(signature(a, a, out=a) for a in (A8, A16)), signature(F32, F32, out=F32)), known_from=_KNOWN
    )
    return table


def _same(inputs: int) -> tuple[Signature, ...]:
    return tuple(Signature((Slot(e),) * max(inputs, 1), e, variadic=not inputs) for e in (A8, A16, F32))


def _resize() -> tuple[Signature, ...]:
    return (*(Signature((Slot(a),), a, when=_not_cubic) for a in (A8, A16)), signature(F32, out=F32))


def _not_cubic(node: ir.Node) -> str:
    return "cubic leaves the range of what it reads" if attribute(node, "mode", "nearest") == "cubic" else ""


def _scatter() -> tuple[Signature, ...]:
    """Elements that are replaced keep their bytes; those that are added up do not."""
    moves = tuple(Signature((Slot(a), Slot(a), Slot(a)), a, when=_replaces) for a in (A8, A16))
    return (*moves, signature(F32, F32, F32, out=F32))


def _replaces(node: ir.Node) -> str:
    return "" if attribute(node, "reduction", "none") == "none" else "what it writes is computed"


def _constant_matmul() -> tuple[Signature, ...]:
    return tuple(Signature((Slot(a), const(W8)), a, when=weight_is_matrix) for a in (A8, A16))


def _second_operands(chip: Chip) -> tuple[Signature, ...]:
    """A 16-bit second operand must be symmetric and signed, from v73 on; the compiler makes any other one 8 bit."""
    wide = (signature(A16, S16, out=A16),) if chip.has_int16_operands else ()
    return (signature(A8, A8, out=A8), *wide, signature(A16, A8, out=A16))


def _is_transposed_product(node: ir.Node) -> str:
    return "" if attribute(node, "equation", "") in EQUATIONS.values() else "its equation is no product of matrices"


def _layer_norm(chip: Chip) -> tuple[Signature, ...]:
    """Kept in integers only with an int32 beta, and with a gamma that is s16 symmetric (A16) or u8 (A8).

    Measured: s16 gamma 84 dB against float, u8 gamma 55; u16 and s8 gamma are refused; any other beta runs in float.
    """
    gamma = S16 if chip.has_int16_operands else A8  # s16 is refused below v73 ("expected >= 73")
    wide = Signature((Slot(A16), const(gamma), bias(B32)), A16, when=_last_axis)
    narrow = Signature((Slot(A8), const(A8), bias(B32)), A8, when=_last_axis)
    return (wide, narrow, signature(F32, F32, F32, out=F32))


def _last_axis(node: ir.Node) -> str:
    shape = shape_of(node.inputs[0])
    axis = int(attribute(node, "axis", -1))
    if shape is not None and axis not in (-1, len(shape) - 1):
        return "LayerNormalization is kept in integers on the last axis only"
    return ""
