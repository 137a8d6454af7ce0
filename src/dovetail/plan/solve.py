"""Choose the encoding of every group and the signature of every unit: as requested, then with fewest conversions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dovetail.edge import Edge
from dovetail.encoding import Encoding
from dovetail.op_support import Precision, Signature, Slot
from dovetail.plan.blocks import available_weight, with_blocks
from dovetail.plan.constraints import Operand, Problem, Unit
from dovetail.plan.kernels import computing_in, constants_fit, same_width, usable
from dovetail.plan.pinned_groups import pinned_groups, pinned_tensors
from dovetail.plan.refuse_pins import refuse_pins
from dovetail.plan.request import OperandPin, Pin, Request
from dovetail.storage import Reason

# Cost of a signature, per operand: a weight encoding other than requested changes the model most, another
# activation encoding changes the kernel, a conversion only costs time.
_WEIGHT_COST, _ACTIVATION_COST, _CONVERSION_COST = 8, 2, 1
# Consumers must read a pinned tensor without a conversion, or the pin would have no effect.
_PINNED_COST = 32


@dataclass(frozen=True, slots=True)
class EncodingChoice:
    """An encoding, why it was chosen, and the text that explains it."""

    encoding: Encoding
    why: Reason
    detail: str

    @property
    def is_float(self) -> bool:
        return not self.encoding.dtype.is_quantized


@dataclass(frozen=True, slots=True)
class Solution:
    """The encoding of every group, and the signature of every unit, by the unit's name."""

    groups: Mapping[str, EncodingChoice]
    signatures: Mapping[str, Signature]


def solve(problem: Problem, request: Request) -> Solution:
    """Choose an encoding that its producers can write for every group, then the cheapest signature for every unit.

    Raises InputError if the caller pinned something to a precision that is not possible there.
    """
    outputs_only = frozenset() if request.quantized_io else _output_groups(problem)
    pinned = pinned_groups(problem, request.pins)
    groups = {
        root: _decide(problem, root, request.precision, pinned.get(root), outputs_only) for root in problem.groups
    }
    _leave_followers_float(problem, groups, pinned)
    reads = _pinned_reads(problem, groups, pinned_tensors(problem, request.pins))
    signatures = {
        unit.name: _choose(problem, unit, request.precision, request.pins.units.get(unit.name), groups, reads)
        for unit in problem.units
    }
    refuse_pins(problem, request.pins, {root: choice.encoding for root, choice in groups.items()}, signatures)
    for unit in problem.units:
        signatures[unit.name] = _with_operands(unit, signatures[unit.name], request.pins.operands)
    return Solution(groups, signatures)


def narrower_operands(problem: Problem, solution: Solution) -> dict[Edge, Encoding]:
    """Edge -> encoding where an operator also supports fewer bits with the same encoding of its first operand: the
    second operand of an activation-by-activation MatMul. The bits of a weight are those of the precision."""
    narrower: dict[Edge, Encoding] = {}
    for unit in problem.units:
        chosen = solution.signatures[unit.name]
        candidate = _narrower(unit, chosen)
        for operand in unit.operands:
            slots = chosen.slot(operand.slot), candidate.slot(operand.slot)
            if slots[0] is None or slots[1] is None or slots[0].constant:
                continue
            if slots[0].encoding != slots[1].encoding:
                narrower[operand.edge] = slots[1].encoding
    return narrower


def _with_operands(unit: Unit, chosen: Signature, pinned: Mapping[Edge, OperandPin]) -> Signature:
    """The signature with the encodings that are pinned on this unit's edges, and the chosen ones elsewhere."""
    encodings = {o.slot: pinned[o.edge].encoding for o in unit.operands if o.edge in pinned}
    if not encodings:
        return chosen
    for candidate in unit.signatures:
        slots = [(chosen.slot(o.slot), candidate.slot(o.slot), encodings.get(o.slot)) for o in unit.operands]
        if (
            candidate.output == chosen.output
            and constants_fit(unit, candidate)
            and all(_as_pinned(*operand_slots) for operand_slots in slots)
        ):
            return candidate
    edges = ", ".join(repr(str(o.edge)) for o in unit.operands if o.edge in pinned)
    raise ValueError(f"{unit.label} has no signature with the encodings pinned on {edges}")


def _as_pinned(chosen: Slot | None, candidate: Slot | None, pinned: Encoding | None) -> bool:
    if pinned is None:
        return chosen == candidate
    return candidate is not None and candidate.encoding == pinned


def _output_groups(problem: Problem) -> frozenset[str]:
    """Groups that are only graph outputs and that quantized kernels can write in float: quantizing them has no use."""
    consumed = {o.name for unit in problem.units for o in unit.operands if o not in unit.shared()}
    roots = {problem.group_of[v.name or ""] for v in problem.outputs if v.name in problem.group_of}
    return frozenset(
        root
        for root in roots
        if consumed.isdisjoint(problem.groups[root])
        and all(_writes_float(problem.producer[name]) for name in problem.sources[root] if name in problem.producer)
    )


def _writes_float(unit: Unit) -> bool:
    """Whether the operator can write float without computing in float, or computes in float in any case."""
    if _float_only(unit):
        return True
    return any(
        s.output == unit.float_encoding and any(slot.encoding.dtype.is_quantized for slot in s.inputs)
        for s in unit.signatures
    )


def _decide(
    problem: Problem, root: str, precision: Precision, pin: Pin | None, outputs_only: frozenset[str]
) -> EncodingChoice:
    members = problem.groups[root]
    domain = _domain(problem, members)
    if problem.table.quantizes_edges:
        if pin is not None and not pin.precision.activation.dtype.is_quantized:
            return EncodingChoice(problem.table.float_encoding, pin.why, pin.detail)
        text = f"kept in float: {problem.table.target} quantizes on the inputs of its quantized kernels"
        return EncodingChoice(problem.table.float_encoding, Reason.ON_EDGES, text)
    if pin is not None:
        decided = EncodingChoice(pin.precision.activation, pin.why, pin.detail)
    elif root in outputs_only:
        decided = EncodingChoice(problem.table.float_encoding, Reason.OUTPUT, "graph output, kept in float")
    else:
        decided = EncodingChoice(precision.activation, Reason.PRECISION, f"{precision.name} activation")
    if decided.encoding in domain:
        return decided
    in_float = problem.table.float_encoding
    fallback = next((e for e in (in_float, *domain) if e in domain), in_float)
    reason = _why_not(problem, members, decided.encoding)
    return EncodingChoice(fallback, Reason.UNSUPPORTED, f"stored as {fallback.dtype}: {reason}")


def _why_not(problem: Problem, members: tuple[str, ...], encoding: Encoding) -> str:
    """Why an encoding is not one that the producers of a group can write, or that the consumers of an input read."""
    target, dtype = problem.table.target, encoding.dtype
    producers = [problem.producer[name] for name in members if name in problem.producer]
    if not producers:
        return f"no consumer reads {dtype} on {target}"
    unable = sorted({unit.label for unit in producers if encoding not in _written(unit)})
    return f"{', '.join(unable)} cannot write {dtype} on {target}"


def _domain(problem: Problem, members: tuple[str, ...]) -> dict[Encoding, None]:
    """The encodings that every producer of the group can write; for a graph input, those its consumers can read."""
    producers = [problem.producer[name] for name in members if name in problem.producer]
    if producers:
        choices = [_written(unit) for unit in producers]
        return {e: None for e in choices[0] if all(e in choice for choice in choices[1:])}
    slots = [s.slot(o.slot) for u in problem.units for o in u.operands if o.name in members for s in u.signatures]
    return dict.fromkeys([*(slot.encoding for slot in slots if slot is not None), problem.table.float_encoding])


def _written(unit: Unit) -> dict[Encoding, None]:
    """The encodings that an operator can write."""
    return dict.fromkeys(s.output for s in unit.signatures if constants_fit(unit, s))


def _leave_followers_float(problem: Problem, groups: dict[str, EncodingChoice], pinned: Mapping[str, Pin]) -> None:
    """Turn a group back to float if its producers all are ``stays_float_between_float`` and one side is float.

    One side: the inputs of all producers, or all consumers. Between float operators a quantized tensor costs accuracy
    and two conversions, and no kernel gains from it.
    """
    readers: dict[str, list[Unit]] = {root: [] for root in groups}
    for unit in problem.units:
        for operand in unit.operands:
            if not operand.constant and operand not in unit.shared():
                readers[problem.group_of[operand.name]].append(unit)
    changed = True
    while changed:
        changed = False
        for root, decided in groups.items():
            producers = [problem.producer.get(name) for name in problem.sources[root]]
            if decided.is_float or not producers or root in pinned:
                continue
            if not all(map(_stays_float, producers)):
                continue
            fed_by_float = all(_has_float_inputs(problem, unit, groups) for unit in producers if unit is not None)
            read_as_float = all(_reads_only_float(problem, unit, groups) for unit in readers[root])
            if fed_by_float or read_as_float:
                side = "its producer reads" if fed_by_float else "its consumers read"
                groups[root] = EncodingChoice(
                    problem.table.float_encoding, Reason.NEIGHBOURS, f"kept in float: {side} float"
                )
                changed = True


def _stays_float(producer: Unit | None) -> bool:
    return producer is not None and producer.support is not None and producer.support.stays_float_between_float


def _has_float_inputs(problem: Problem, unit: Unit, groups: Mapping[str, EncodingChoice]) -> bool:
    inputs = [groups[problem.group_of[o.name]] for o in unit.operands if not o.constant]
    return bool(inputs) and all(decided.is_float for decided in inputs)


def _reads_only_float(problem: Problem, unit: Unit, groups: Mapping[str, EncodingChoice]) -> bool:
    """Whether no signature with the decided output encoding has quantized inputs.

    So a residual stream between layer norms is all float if no Add has quantized inputs and a float output.
    """
    decided = {groups[problem.group_of[v.name or ""]].encoding for v in unit.outputs}
    fitting = [s for s in unit.signatures if decided <= {s.output}] or unit.signatures
    return all(not slot.encoding.dtype.is_quantized for s in fitting for slot in s.inputs)


def _float_only(unit: Unit) -> bool:
    return all(not slot.encoding.dtype.is_quantized for s in unit.signatures for slot in s.inputs)


def _pinned_reads(
    problem: Problem, groups: Mapping[str, EncodingChoice], pinned: Mapping[str, Pin]
) -> dict[str, Encoding]:
    """The encoding in which consumers must read the groups whose tensors are pinned."""
    if problem.table.quantizes_edges:
        return {root: pin.precision.activation for root, pin in pinned.items()}
    return {root: groups[root].encoding for root in pinned}


def _choose(
    problem: Problem,
    unit: Unit,
    requested: Precision,
    pin: Pin | None,
    groups: Mapping[str, EncodingChoice],
    reads: Mapping[str, Encoding],
) -> Signature:
    """The cheapest signature with the encoding that was decided for the unit's outputs, in the precision of its pin."""
    precision = requested if pin is None else pin.precision
    decided = {groups[problem.group_of[v.name or ""]].encoding for v in unit.outputs}
    candidates = with_blocks(unit, usable(unit), precision)
    fitting = [s for s in candidates if decided <= {s.output}] or candidates or list(unit.signatures)
    if pin is not None:
        fitting = computing_in(unit, fitting, pin.precision) or fitting
    wanted = replace(precision, weight=available_weight(fitting, precision.weight))
    return min(fitting, key=lambda s: sum(_cost(problem, o, s, wanted, groups, reads) for o in unit.operands))


def _narrower(unit: Unit, chosen: Signature) -> Signature:
    """The signature with fewer bits for operands after the first and all else equal; without one, the chosen one."""
    for candidate in unit.signatures:
        if candidate.output != chosen.output or len(candidate.inputs) != len(chosen.inputs):
            continue
        if not constants_fit(unit, candidate):
            continue
        slots = list(zip(candidate.inputs, chosen.inputs, strict=True))
        same_kinds = all(a.encoding.dtype.is_integer == b.encoding.dtype.is_integer for a, b in slots)
        bits = [(a.encoding.dtype.bits, b.encoding.dtype.bits) for a, b in slots]
        if same_kinds and bits[0][0] == bits[0][1] and any(a < b for a, b in bits) and all(a <= b for a, b in bits):
            return candidate
    return chosen


def _cost(
    problem: Problem,
    operand: Operand,
    signature: Signature,
    precision: Precision,
    groups: Mapping[str, EncodingChoice],
    reads: Mapping[str, Encoding],
) -> int:
    slot = signature.slot(operand.slot)
    if slot is None or slot.derived:
        return 0
    if operand.constant and slot.constant:
        return 0 if same_width(slot.encoding, precision.weight) else _WEIGHT_COST
    cost = 0 if same_width(slot.encoding, precision.activation) else _ACTIVATION_COST
    if not operand.constant:
        root = problem.group_of[operand.name]
        cost += _CONVERSION_COST * (groups[root].encoding != slot.encoding)
        if slot.encoding.dtype.is_quantized or problem.table.quantizes_edges:  # a dequantized tensor loses nothing
            cost += _PINNED_COST * (reads.get(root, slot.encoding) != slot.encoding)
    return cost
