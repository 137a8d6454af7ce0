"""Block-quantized weights: which layers can have the blocks of a precision, and what the others get instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail.encoding import Encoding, Granularity
from dovetail.model.edit import input_axis, shape_of
from dovetail.op_support import OpTable, Precision, Signature
from dovetail.plan.constraints import Operand, Unit

# The input of a linear operator that is its weight.
WEIGHT = 1
_ALWAYS_BITS = 8


def with_blocks(unit: Unit, signatures: Sequence[Signature], precision: Precision) -> list[Signature]:
    """The signatures that a precision can choose from: those in blocks only of its own granularity, with its size.

    A layer whose channels cannot be divided into blocks keeps the bits, per channel; a layer without a kernel for
    blocks gets wider weights, because few bits per channel lose too much there.
    """
    wanted = precision.weight
    plain = [s for s in signatures if not _blocked(s)]
    if not wanted.is_blocked:
        return plain
    in_blocks = [_sized(s, wanted) for s in signatures if any(_is_same(e, wanted) for e in _blocked(s))]
    if not in_blocks:
        return [s for s in plain if not _has_bits(s, wanted)]
    return plain if _indivisible(unit, wanted) else [*in_blocks, *plain]


def available_weight(signatures: Sequence[Signature], wanted: Encoding) -> Encoding:
    """The encoding of weights to look for: the requested one, or the narrowest one where a unit does not have it.

    Of the precisions with 8 bits or more every linear operator has a kernel; of narrower ones it may have none.
    """
    slots = [slot for s in signatures if (slot := s.slot(WEIGHT)) is not None and slot.constant]
    integer = [slot.encoding for slot in slots if slot.encoding.dtype.is_integer]
    if wanted.dtype.bits >= _ALWAYS_BITS or not integer or any(e.dtype is wanted.dtype for e in integer):
        return wanted
    return min(integer, key=lambda encoding: encoding.dtype.bits)


def why_no_blocks(unit: Unit, operand: Operand, wanted: Encoding, chosen: Encoding, table: OpTable) -> str:
    """Why a weight does not have the requested blocks; empty where it has them or none were requested."""
    if not wanted.is_blocked or chosen.granularity is not Granularity.AXIS or operand.slot != WEIGHT:
        return ""
    listed = () if unit.support is None else unit.support.signatures
    in_blocks = [s for s in listed if any(_is_same(e, wanted) for e in _blocked(s))]
    reasons = ["" if s.when is None else s.when(unit.nodes[0]) for s in in_blocks]
    if in_blocks and "" not in reasons:
        reason = reasons[0]
    elif in_blocks or unit.nodes[0].op_type == "Gemm":  # a target without blocks for Gemm has them in another form
        reason = _indivisible(unit, wanted) or table.why_not_over(wanted, _input_channels(unit))
    else:
        reason = ""
    return f"not in blocks: {reason or f'{unit.label} has no kernel for block-quantized weights'}"


def _indivisible(unit: Unit, wanted: Encoding) -> str:
    """Why the input channels of a unit's weight cannot be divided into blocks; empty if they can."""
    channels = _input_channels(unit)
    if channels and channels % wanted.block_size == 0:
        return ""
    return f"its {channels} input channels are not a multiple of the block size {wanted.block_size}"


def _input_channels(unit: Unit) -> int:
    """The input channels of a unit's weight; 0 if it is not known, or not a matrix or kernel."""
    shape = shape_of(next((o.value for o in unit.operands if o.slot == WEIGHT), None))
    return 0 if shape is None or len(shape) < 2 else shape[input_axis(unit.nodes[0], len(shape))]


def _blocked(signature: Signature) -> list[Encoding]:
    return [slot.encoding for slot in signature.inputs if slot.encoding.is_blocked]


def _is_same(encoding: Encoding, wanted: Encoding) -> bool:
    return replace(wanted, block_size=0) == encoding


def _has_bits(signature: Signature, wanted: Encoding) -> bool:
    return any(slot.constant and slot.encoding.dtype is wanted.dtype for slot in signature.inputs)


def _sized(signature: Signature, wanted: Encoding) -> Signature:
    """The signature with the block size of the precision."""
    slots = tuple(replace(s, encoding=wanted) if s.encoding.is_blocked else s for s in signature.inputs)
    return replace(signature, inputs=slots)
