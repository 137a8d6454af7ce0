"""What a target accepts, over a small vocabulary: operators, the types of what they read and write, precisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dovetail.encoding import FLOAT16, FLOAT32, DType, Encoding, Granularity

if TYPE_CHECKING:
    import onnx_ir as ir

A8 = Encoding(DType.U8)

A16 = Encoding(DType.U16)

W8 = Encoding(DType.S8, symmetric=True, granularity=Granularity.AXIS)

B32 = Encoding(DType.S32, symmetric=True, granularity=Granularity.AXIS)

F32 = FLOAT32

F16 = FLOAT16


@dataclass(frozen=True, slots=True)
class Slot:
    """What one input or output of an operator takes.

    ``constant``: only constants may stand here. ``derived``: the numbers are not free but follow from the other
    operands (an int32 bias has input scale x weight scale).
    """

    encoding: Encoding
    constant: bool = False
    derived: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """One joint choice for the inputs and the outputs (all alike) of an operator.

    ``variadic``: the last input slot repeats; otherwise further inputs are none of the plan's business.
    ``when``: asked per node, the empty string for yes, else why this choice is not open there.
    """

    inputs: tuple[Slot, ...]
    output: Encoding
    variadic: bool = False
    when: Callable[[ir.Node], str] | None = None

    def slot(self, index: int) -> Slot | None:
        """What input ``index`` takes; None where it is left as it is."""
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


@dataclass(frozen=True, slots=True)
class FixedQParams:
    """Numbers that an operator's output always has on this target, by dtype."""

    dtype: DType
    scale: float
    zero_point: int


@dataclass(frozen=True, slots=True)
class OpSupport:
    """What a target accepts for one operator.

    ``shares``: the inputs whose stored bytes the outputs carry on unchanged (empty: none; None: all inputs).
    ``follows``: integer storage is not worth having here for its own sake: between float neighbours it stays float.
    ``unclipped``: what goes in and out keeps its whole range, whatever method finds the others: the largest scores are
    what a softmax is about.
    ``joins``: constants are stored with the numbers of the output, so that nothing has to be converted beside them.
    ``least_scale``: by dtype, what it reads with a smaller scale comes out wrong. ``scale_step``: by dtype, the scale
    of what it writes has to be a multiple of this.
    ``known_from``: the version and the way in which this is known; a fact without one is folklore.
    """

    signatures: tuple[Signature, ...]
    shares: tuple[int, ...] | None = ()
    follows: bool = False
    unclipped: bool = False
    fixed: tuple[FixedQParams, ...] = ()
    joins: bool = False
    least_scale: Mapping[DType, float] = field(default_factory=dict)
    scale_step: Mapping[DType, float] = field(default_factory=dict)
    known_from: str = ""


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators that the target runs as one: what is between them is never stored.

    The first one's signature speaks for all. ``bias``: the second operator adds a constant, one number per output
    channel, which takes the slot after the first one's inputs.
    """

    ops: tuple[str, ...]
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Precision:
    """What is wanted for activations and for weights; the op table says what is possible."""

    name: str
    activation: Encoding
    weight: Encoding


@dataclass(frozen=True, slots=True)
class OpTable:
    """What a target accepts: all that planning and the rules need to know of it.

    ``target``: its name, for messages. ``chains``: operators that run as one. ``max_rank``: tensors of a higher rank
    are refused. ``unsupported``: operators that it cannot run in any form, with the reason; they are cut off, with all
    that depends on them. ``only``: the operators that it can be given at all; None where its compiler decides.
    ``unavailable``: precisions that a caller may well ask for, with the reason why they cannot be had.
    ``choices``: names that stand for several precisions, of which the best on the caller's data is taken.
    ``float_encoding``: the type in which it computes what is not quantized.
    ``quantizes_edges``: tensors stay float, and 8 bit stands on the edges into operators that compute in it: every
    consumer converts for itself, equal conversions once. ``runs_float_between``: what has no integer form runs in float
    between dequantize and quantize, slower and less exact, but right.
    """

    target: str
    ops: Mapping[str, OpSupport]
    precisions: Mapping[str, Precision]
    chains: tuple[Chain, ...] = ()
    max_rank: int | None = None
    unsupported: Mapping[str, str] = field(default_factory=dict)
    only: frozenset[str] | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    float_encoding: Encoding = FLOAT32
    quantizes_edges: bool = False
    runs_float_between: bool = False


W8A8 = Precision("w8a8", A8, W8)

W8A16 = Precision("w8a16", A16, W8)

FP32 = Precision("fp32", F32, F32)

FP16 = Precision("fp16", F16, F16)


def computing_in(encoding: Encoding, ops: Mapping[str, OpSupport]) -> dict[str, OpSupport]:
    """A table written with float32 for everything that is not quantized, in another float type."""

    def other(given: Encoding) -> Encoding:
        return encoding if given == F32 else given

    def signatures(support: OpSupport) -> tuple[Signature, ...]:
        return tuple(
            replace(s, inputs=tuple(replace(i, encoding=other(i.encoding)) for i in s.inputs), output=other(s.output))
            for s in support.signatures
        )

    return {op: replace(support, signatures=signatures(support)) for op, support in ops.items()}
