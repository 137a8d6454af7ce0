"""Choosing the encoding of every group and the signature of every unit: what was asked for, then fewest conversions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.edge import Edge
from dovetail.encoding import Encoding
from dovetail.op_support import Precision, Signature, Slot
from dovetail.plan.constraints import Operand, Problem, Unit
from dovetail.plan.request import OperandPin, Pin, Pins, Request
from dovetail.storage import Reason

# What a signature costs, per operand: another weight encoding than wanted changes the model most, another
# activation encoding changes the kernel, a conversion only costs time.
_WEIGHT_COST, _ACTIVATION_COST, _CONVERSION_COST = 8, 2, 1
# A tensor that the caller pinned must reach its readers as it is stored, or pinning it would buy nothing.
_PINNED_COST = 32


@dataclass(frozen=True, slots=True)
class EncodingChoice:
    """An encoding, why it was chosen, and what people are told of it."""

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
    """Give every group an encoding that its producers can write, then every unit the cheapest signature that fits."""
    outputs_only = frozenset() if request.quantized_io else _output_groups(problem)
    pinned = _pinned_groups(problem, request.pins)
    groups = {
        root: _decide(problem, root, request.precision, pinned.get(root), outputs_only) for root in problem.groups
    }
    _leave_followers_float(problem, groups, pinned)
    signatures = {}
    for unit in problem.units:
        pin = request.pins.units.get(unit.name)
        wanted = request.precision if pin is None else pin.precision
        chosen = _choose(problem, unit, wanted, groups, request.pins)
        signatures[unit.name] = _with_operands(unit, chosen, request.pins.operands)
    return Solution(groups, signatures)


def _pinned_groups(problem: Problem, pins: Pins) -> dict[str, Pin]:
    """The pin of each group that has one: its own, else that of the first operator which writes it."""
    pinned: dict[str, Pin] = {}
    for unit in problem.units:
        for value in unit.outputs:
            if unit.name in pins.units:
                pinned.setdefault(problem.group_of[value.name or ""], pins.units[unit.name])
    for root, members in problem.groups.items():
        if (named := next((pins.groups[name] for name in members if name in pins.groups), None)) is not None:
            pinned[root] = named
    return pinned


def narrower_operands(problem: Problem, solution: Solution) -> dict[Edge, Encoding]:
    """The edges on which an operator would also take fewer bits beside the same first operand, and what it would take:
    the second operand of a MatMul of two activations."""
    found: dict[Edge, Encoding] = {}
    for unit in problem.units:
        chosen = solution.signatures[unit.name]
        other = _narrower(unit, chosen)
        for operand in unit.operands:
            slots = chosen.slot(operand.slot), other.slot(operand.slot)
            if slots[0] is not None and slots[1] is not None and slots[0].encoding != slots[1].encoding:
                found[operand.edge] = slots[1].encoding
    return found


def _with_operands(unit: Unit, chosen: Signature, pinned: Mapping[Edge, OperandPin]) -> Signature:
    """The signature that reads what is pinned on this unit's edges, all else as chosen."""
    wanted = {o.slot: pinned[o.edge].encoding for o in unit.operands if o.edge in pinned}
    if not wanted:
        return chosen
    for other in unit.signatures:
        slots = [(chosen.slot(o.slot), other.slot(o.slot), wanted.get(o.slot)) for o in unit.operands]
        if other.output == chosen.output and _takes(unit, other) and all(_as_pinned(*each) for each in slots):
            return other
    edges = ", ".join(repr(str(o.edge)) for o in unit.operands if o.edge in pinned)
    raise ValueError(f"{unit.label} has no signature with what is pinned on {edges}")


def _as_pinned(chosen: Slot | None, other: Slot | None, wanted: Encoding | None) -> bool:
    if wanted is None:
        return chosen == other
    return other is not None and other.encoding == wanted


def _output_groups(problem: Problem) -> frozenset[str]:
    """Groups that are only read as graph outputs, and that integer operators can write in float: storing them in
    integers would buy nothing."""
    read = {o.name for unit in problem.units for o in unit.operands if o not in unit.shared()}
    roots = {problem.group_of[v.name or ""] for v in problem.outputs if v.name in problem.group_of}
    return frozenset(
        root
        for root in roots
        if read.isdisjoint(problem.groups[root])
        and all(_writes_float(problem.producer[name]) for name in problem.sources[root] if name in problem.producer)
    )


def _writes_float(unit: Unit) -> bool:
    """Whether float output does not force the operator itself into float."""
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
        text = f"kept in float: {problem.table.target} converts what its products read"
        return EncodingChoice(problem.table.float_encoding, Reason.ON_EDGES, text)
    if pin is not None:
        decided = EncodingChoice(pin.precision.activation, pin.why, pin.detail)
    elif root in outputs_only:
        decided = EncodingChoice(problem.table.float_encoding, Reason.OUTPUT, "graph output, left in float")
    else:
        decided = EncodingChoice(precision.activation, Reason.PRECISION, f"{precision.name} activation")
    if decided.encoding in domain:
        return decided
    in_float = problem.table.float_encoding
    fallback = next((e for e in (in_float, *domain) if e in domain), in_float)
    makers = sorted({problem.producer[n].label for n in members if n in problem.producer})
    writers = ", ".join(makers) or "what reads this input"
    return EncodingChoice(
        fallback, Reason.UNSUPPORTED, f"{writers} has no {decided.encoding.dtype} on {problem.table.target}"
    )


def _domain(problem: Problem, members: tuple[str, ...]) -> dict[Encoding, None]:
    """The encodings that every producer of the group can write; for a graph input, what its readers can take."""
    makers = [problem.producer[name] for name in members if name in problem.producer]
    if makers:
        choices = [dict.fromkeys(s.output for s in unit.signatures if _takes(unit, s)) for unit in makers]
        return {e: None for e in choices[0] if all(e in others for others in choices[1:])}
    slots = [s.slot(o.slot) for u in problem.units for o in u.operands if o.name in members for s in u.signatures]
    return dict.fromkeys([*(slot.encoding for slot in slots if slot is not None), problem.table.float_encoding])


def _leave_followers_float(problem: Problem, groups: dict[str, EncodingChoice], pinned: Mapping[str, Pin]) -> None:
    """Turn groups back to float that only followers write and that have no integer neighbour on one side.

    Between float operators an integer storage costs accuracy and two conversions, and no kernel gains from it.
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
            makers = [problem.producer.get(name) for name in problem.sources[root]]
            if decided.is_float or not makers or root in pinned:
                continue
            if not all(unit is not None and unit.support is not None and unit.support.follows for unit in makers):
                continue
            fed = all(_reads_float_only(problem, unit, groups) for unit in makers if unit is not None)
            used = all(_takes_float_only(problem, unit, groups) for unit in readers[root])
            if fed or used:
                side = "what it is made from" if fed else "what reads it"
                groups[root] = EncodingChoice(
                    problem.table.float_encoding, Reason.NEIGHBOURS, f"stays float: {side} is float"
                )
                changed = True


def _reads_float_only(problem: Problem, unit: Unit, groups: Mapping[str, EncodingChoice]) -> bool:
    inputs = [groups[problem.group_of[o.name]] for o in unit.operands if not o.constant]
    return bool(inputs) and all(decided.is_float for decided in inputs)


def _takes_float_only(problem: Problem, unit: Unit, groups: Mapping[str, EncodingChoice]) -> bool:
    """Whether a unit that writes what was decided for it has no form that reads integers: all of a residual stream
    between layer norms is float, where no addition has a form with integers in and float out."""
    decided = {groups[problem.group_of[v.name or ""]].encoding for v in unit.outputs}
    fitting = [s for s in unit.signatures if decided <= {s.output}] or unit.signatures
    return all(not slot.encoding.dtype.is_quantized for s in fitting for slot in s.inputs)


def _float_only(unit: Unit) -> bool:
    return all(not slot.encoding.dtype.is_quantized for s in unit.signatures for slot in s.inputs)


def _choose(
    problem: Problem, unit: Unit, wanted: Precision, groups: Mapping[str, EncodingChoice], pins: Pins
) -> Signature:
    """The cheapest signature whose output is what was decided for it."""
    decided = {groups[problem.group_of[v.name or ""]].encoding for v in unit.outputs}
    usable = [s for s in unit.signatures if _takes(unit, s)]
    fitting = [s for s in usable if decided <= {s.output}] or usable or list(unit.signatures)
    return min(fitting, key=lambda s: sum(_cost(problem, o, s, wanted, groups, pins) for o in unit.operands))


def _narrower(unit: Unit, chosen: Signature) -> Signature:
    """The signature with fewer bits for activations behind the first, all else alike; else the chosen one."""
    for other in unit.signatures:
        if other.output != chosen.output or len(other.inputs) != len(chosen.inputs) or not _takes(unit, other):
            continue
        pairs = list(zip(other.inputs, chosen.inputs, strict=True))
        kinds_alike = all(a.encoding.dtype.is_integer == b.encoding.dtype.is_integer for a, b in pairs)
        bits = [(a.encoding.dtype.bits, b.encoding.dtype.bits) for a, b in pairs]
        if kinds_alike and bits[0][0] == bits[0][1] and any(a < b for a, b in bits) and all(a <= b for a, b in bits):
            return other
    return chosen


def _takes(unit: Unit, signature: Signature) -> bool:
    """Whether the operands that must be constants are."""
    slots = [(o, signature.slot(o.slot)) for o in unit.operands]
    return all(o.constant or slot is None or not slot.constant for o, slot in slots)


def _cost(
    problem: Problem,
    operand: Operand,
    signature: Signature,
    wanted: Precision,
    groups: Mapping[str, EncodingChoice],
    pins: Pins,
) -> int:
    slot = signature.slot(operand.slot)
    if slot is None or slot.derived:
        return 0
    if operand.constant and slot.constant:
        return 0 if _alike(slot.encoding, wanted.weight) else _WEIGHT_COST
    cost = 0 if _alike(slot.encoding, wanted.activation) else _ACTIVATION_COST
    if not operand.constant and groups[problem.group_of[operand.name]].encoding != slot.encoding:
        cost += _PINNED_COST if operand.name in pins.groups else _CONVERSION_COST
    return cost


def _alike(one: Encoding, other: Encoding) -> bool:
    """Same width and kind; granularity and sign are the table's business."""
    return one.dtype.bits == other.dtype.bits and one.dtype.is_integer == other.dtype.is_integer
