"""Which signatures of a unit compute at a precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.encoding import Encoding
from dovetail.op_support import Precision, Signature
from dovetail.plan.constraints import Unit


def same_kind(a: Encoding, b: Encoding) -> bool:
    """Whether both are integer, both float8, or both float."""
    return a.dtype.is_integer == b.dtype.is_integer and a.dtype.is_quantized == b.dtype.is_quantized


def same_width(a: Encoding, b: Encoding) -> bool:
    """Whether both have the same bit width and are both integer or both float; the table fixes sign and granularity."""
    return a.dtype.bits == b.dtype.bits and a.dtype.is_integer == b.dtype.is_integer


def constants_fit(unit: Unit, signature: Signature) -> bool:
    """Whether every operand that the signature requires to be a constant is one."""
    slots = [(o, signature.slot(o.slot)) for o in unit.operands]
    return all(o.constant or slot is None or not slot.constant for o, slot in slots)


def usable(unit: Unit) -> list[Signature]:
    """The signatures that this unit can run with."""
    return [s for s in unit.signatures if constants_fit(unit, s)]


def listed(unit: Unit) -> list[Signature]:
    """The signatures that the target's table has for this operator, also those that do not apply to this node."""
    signatures = unit.signatures if unit.support is None else unit.support.signatures
    return [s for s in signatures if constants_fit(unit, s)]


def computes_in(unit: Unit, signature: Signature, precision: Precision) -> bool:
    """Whether the unit reads its activations in this precision; operands after the first may have another bit width.

    A 16-bit MatMul may have an 8-bit second operand.
    """
    slots = [signature.slot(o.slot) for o in unit.operands if not o.constant]
    encodings = [slot.encoding for slot in slots if slot is not None] or [signature.output]
    return same_width(encodings[0], precision.activation) and all(
        same_kind(encoding, precision.activation) for encoding in encodings
    )


def computing_in(unit: Unit, signatures: Iterable[Signature], precision: Precision) -> list[Signature]:
    """The signatures that compute in a precision as far as the target does so for this operator at all.

    A target may quantize the inputs of an operator and not its output, or its activations and not its weight.
    """
    kernels = [s for s in listed(unit) if computes_in(unit, s, precision)]
    fewest = min((_misses(unit, s, precision) for s in kernels), default=0)
    return [s for s in signatures if computes_in(unit, s, precision) and _misses(unit, s, precision) <= fewest]


def has_kernel(unit: Unit, precision: Precision) -> bool:
    """Whether the target's table has a kernel of this precision for the operator, for some nodes at least."""
    return any(computes_in(unit, signature, precision) for signature in listed(unit))


def possible(unit: Unit, precisions: Sequence[Precision]) -> list[str]:
    """The names of the precisions in which this unit can compute."""
    return [p.name for p in precisions if computing_in(unit, usable(unit), p)]


def _misses(unit: Unit, signature: Signature, precision: Precision) -> int:
    """How many constants of another kind than the precision's weights the signature has."""
    slots = [signature.slot(o.slot) for o in unit.operands if o.constant]
    weights = [slot.encoding for slot in slots if slot is not None and not slot.derived]
    return sum(not same_kind(encoding, precision.weight) for encoding in weights)
