"""What a target accepts: operators, the encodings of their inputs and outputs, and precisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dovetail.encoding import FLOAT16, FLOAT32, DType, Encoding, Granularity

if TYPE_CHECKING:
    import onnx_ir as ir

A8 = Encoding(DType.U8)

A16 = Encoding(DType.U16)

W8 = Encoding(DType.S8, symmetric=True, granularity=Granularity.AXIS)

W16 = Encoding(DType.S16, symmetric=True)

W4 = Encoding(DType.S4, symmetric=True, granularity=Granularity.AXIS)

W4_BLOCK = Encoding(DType.S4, symmetric=True, granularity=Granularity.BLOCK)

W4_EXPANDED = Encoding(DType.S4, symmetric=True, granularity=Granularity.EXPANDED_BLOCK)

B32 = Encoding(DType.S32, symmetric=True, granularity=Granularity.AXIS)

F32 = FLOAT32

F16 = FLOAT16

_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Slot:
    """What one input of an operator accepts; an encoding in blocks without a size accepts every size.

    ``constant``: only constants are accepted. ``derived``: the scale follows from the other operands (an int32 bias has
    input scale x weight scale). ``per_channel``: a single scale, which other tools give to weights, is not accepted: it
    is repeated for every channel.
    """

    encoding: Encoding
    constant: bool = False
    derived: bool = False
    per_channel: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """One combination of encodings for the inputs and the outputs (all the same) of an operator.

    ``variadic``: the last input slot repeats; otherwise further inputs are left as they are. ``when``: checked for each
    node; returns the empty string if the signature applies there, else the reason why it does not.
    """

    inputs: tuple[Slot, ...]
    output: Encoding
    variadic: bool = False
    when: Callable[[ir.Node], str] | None = None

    def slot(self, index: int) -> Slot | None:
        """Return the slot of input ``index``; None if that input is left as it is."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.variadic else None


def const(encoding: Encoding) -> Slot:
    """A slot for a constant."""
    return Slot(encoding, constant=True)


def bias(encoding: Encoding) -> Slot:
    """A slot for a constant whose scale is input scale x weight scale."""
    return Slot(encoding, constant=True, derived=True)


def signature(*inputs: Encoding | Slot, out: Encoding) -> Signature:
    """A signature, written as the operands in order: ``signature(A8, const(W8), bias(B32), out=A8)``."""
    return Signature(tuple(s if isinstance(s, Slot) else Slot(s) for s in inputs), out)


def multiple_of(step: float, of: DType) -> Callable[[ir.Node, DType, float], float]:
    """A scale of one dtype that must be a multiple of a step; a float32 may be off by its last bit."""

    def allowed_scale(node: ir.Node, dtype: DType, scale: float) -> float:
        return math.ceil(scale / step * (1 - _ROUNDING)) * step if dtype is of else scale

    return allowed_scale


@dataclass(frozen=True, slots=True)
class FixedQParams:
    """The scale and zero point that an operator's output always has on this target, for one dtype."""

    dtype: DType
    scale: float
    zero_point: int


@dataclass(frozen=True, slots=True)
class OpSupport:
    """What a target accepts for one operator.

    ``shares``: the inputs whose quantization passes through to the outputs unchanged (empty: none; None: all inputs).
    ``stays_float_between_float``: quantizing it alone gains nothing: between float neighbors it stays float.
    ``quantized_early``: the backend moves a QuantizeLinear after it to before it, so the plan does as well.
    ``requantizes``: its quantized kernel converts between scales and zero points of input and output; sharing one, as
    a plan does, only saves the conversion.
    ``unclipped``: its inputs and outputs keep their full range, whatever the range method: a softmax depends on the
    largest scores.
    ``joins``: constants are quantized with the scale and zero point of the output, so that no conversion is needed.
    ``least_scale``: by dtype, the smallest input scale that gives correct results.
    ``input_scale``: for a node, a dtype and a scale, the smallest input scale that is not below it and gives accurate
    results.
    ``least_weight_scale``: for the input's dtype and scale and the output's scale (None if it is float), the smallest
    scale of a constant weight that gives correct results.
    ``output_scale``: for a node, a dtype and a scale, the smallest output scale that is not below it and gives correct
    results.
    ``rescaled``: for a node, the index of an input and its dtype, why this input must be read with another scale than
    its tensor has, by an explicit requantization; empty where it may be read as it is.
    ``narrowest_with_float``: in float, it does not read a quantized activation of fewer bits beside a float one.
    ``known_from``: the version, and how this is known.
    """

    signatures: tuple[Signature, ...]
    shares: tuple[int, ...] | None = ()
    stays_float_between_float: bool = False
    quantized_early: bool = False
    requantizes: bool = False
    unclipped: bool = False
    fixed: tuple[FixedQParams, ...] = ()
    joins: bool = False
    least_scale: Mapping[DType, float] = field(default_factory=dict)
    input_scale: Callable[[ir.Node, DType, float], float] | None = None
    least_weight_scale: Callable[[DType, float, float | None], float] | None = None
    output_scale: Callable[[ir.Node, DType, float], float] | None = None
    rescaled: Callable[[ir.Node, int, DType], str] | None = None
    narrowest_with_float: int = 0
    known_from: str = ""


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators that the target fuses: the tensors between them are never stored.

    The signature of the first one applies to all. ``bias``: the second operator adds a constant, one value per output
    channel, which takes the slot after the first one's inputs. ``at_lowest``: they are fused only if the zero point of
    the output is the lowest integer, where clamping at zero is what quantizing does anyway. Elsewhere they run one by
    one, and the tensors between them have the output's scale and zero point, so that nothing is rounded twice.
    """

    ops: tuple[str, ...]
    bias: bool = False
    at_lowest: bool = False


@dataclass(frozen=True, slots=True)
class Precision:
    """The requested encodings of activations and weights; the op table says what is possible."""

    name: str
    activation: Encoding
    weight: Encoding


@dataclass(frozen=True, slots=True)
class OpTable:
    """What a target accepts: all that planning and the rules need to know about it.

    ``target``: its name, for messages. ``chains``: operators that it fuses. ``max_rank``: tensors of a higher rank are
    not supported. ``merges_rank``: whether the compiler merges dimensions of such a tensor, so that it does no harm.
    ``unsupported``: operators that it cannot run at any precision, with the reason; they are moved to
    the tail, with all that depends on them. ``only``: the operators that can be lowered at all; None if its compiler
    decides. ``unavailable``: precisions that a caller may request but that are not available, with the reason.
    ``choices``: names for several precisions, of which the best one on the caller's data is used.
    ``float_encoding``: the type in which it computes what is not quantized.
    ``quantizes_edges``: tensors stay float and are quantized on the edges into operators that compute in 8 bit: every
    consumer has its own Q/DQ pair, equal ones are shared. ``runs_float_between``: operators without an integer kernel
    run in float between DequantizeLinear and QuantizeLinear, which is slower but correct.
    ``domains``: those whose operators it runs; the empty one is that of ONNX. ``keeps_attention``: an attention block
    is one kernel, which gains most from 8 bits: a mixed precision leaves it quantized. ``why_no_block_size``: why
    it does not support the block size of an encoding; empty if it does. ``why_not_over``: the same for blocks of an
    encoding over a number of input channels. ``mixes_blocks``: blocks with float scales and blocks with integer scales
    can be in one graph. ``one_encoding``: what ships is a file with one encoding per tensor, which cannot say that one
    consumer reads a tensor in another one (``plan/one_encoding.py``).
    """

    target: str
    ops: Mapping[str, OpSupport]
    precisions: Mapping[str, Precision]
    chains: tuple[Chain, ...] = ()
    max_rank: int | None = None
    merges_rank: Callable[[ir.Value], bool] = lambda value: False
    unsupported: Mapping[str, str] = field(default_factory=dict)
    only: frozenset[str] | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    float_encoding: Encoding = FLOAT32
    quantizes_edges: bool = False
    runs_float_between: bool = False
    domains: tuple[str, ...] = ("",)
    keeps_attention: bool = False
    why_no_block_size: Callable[[Encoding], str] = lambda encoding: ""
    why_not_over: Callable[[Encoding, int], str] = lambda encoding, channels: ""
    mixes_blocks: bool = True
    one_encoding: bool = False


# The choice of a precision, and of operators in a wider one, by trials; and the same with 4-bit weights, which takes
# longer and seldom keeps the accuracy.
AUTO, AUTO_W4 = "auto", "auto-w4"

W8A8 = Precision("w8a8", A8, W8)

W8A16 = Precision("w8a16", A16, W8)

W16A16 = Precision("w16a16", A16, W16)

# Of block-quantized weights; the caller can choose another one.
BLOCK_SIZE = 32

W4A16 = Precision("w4a16", A16, W4)

W4A16_BQ = Precision("w4a16-bq", A16, replace(W4_BLOCK, block_size=BLOCK_SIZE))

W4A16_LPBQ = Precision("w4a16-lpbq", A16, replace(W4_EXPANDED, block_size=BLOCK_SIZE))

FP32 = Precision("fp32", F32, F32)

FP16 = Precision("fp16", F16, F16)


def computing_in(encoding: Encoding, ops: Mapping[str, OpSupport]) -> dict[str, OpSupport]:
    """Return a table in which another float encoding takes the place of float32."""

    def changed(current: Encoding) -> Encoding:
        return encoding if current == F32 else current

    def signatures(support: OpSupport) -> tuple[Signature, ...]:
        return tuple(
            replace(
                s,
                inputs=tuple(replace(slot, encoding=changed(slot.encoding)) for slot in s.inputs),
                output=changed(s.output),
            )
            for s in support.signatures
        )

    return {op: replace(support, signatures=signatures(support)) for op, support in ops.items()}


def with_block_size(table: OpTable, size: int) -> OpTable:
    """The table with another block size in its precisions with block-quantized weights."""
    precisions = {
        name: replace(p, weight=replace(p.weight, block_size=size)) if p.weight.is_blocked else p
        for name, p in table.precisions.items()
    }
    return replace(table, precisions=precisions)
