"""Where sharing one storage over a merge would cost too much, and an explicit conversion is better."""

from __future__ import annotations

from dovetail.edge import Edge
from dovetail.model.edit import constant_of
from dovetail.plan.constraints import Problem, Unit, build_part
from dovetail.plan.qparams import Range
from dovetail.stats import Stats

# A range four times as wide costs 12 dB of an 8-bit grid: more than a conversion is worth saving.
MAX_RANGE_GROWTH = 4.0


def costly_merges(problem: Problem, stats: Stats) -> dict[Edge, str]:
    """The edges into merging operators (byte-preserving Concat) that should convert instead of share.

    Fixed numbers, and float, cannot be shared. Otherwise only a tensor that is also read by others gains from keeping
    its own range: what goes through the merge ends on the merged range in any case.
    """
    broken: dict[Edge, str] = {}
    for unit in problem.units:
        operands = unit.shared()
        if len(operands) < 2 or not unit.outputs:
            continue
        merged = _merged_range(unit, problem, stats)
        for operand in operands:
            if operand.constant:
                continue
            part = build_part(problem, operand.name, without=unit)
            if reason := _keeps_its_own(part, problem):
                broken[operand.edge] = f"explicit conversion: {reason}"
                continue
            own = _observed(part, problem, stats)
            if own is None or merged is None or not _read_elsewhere(part, problem, unit):
                continue
            growth = merged.width / own.width if own.width > 0 else 1.0
            if growth > MAX_RANGE_GROWTH:
                broken[operand.edge] = (
                    f"explicit conversion: sharing with {unit.label} would widen this range {growth:.3g} times"
                )
    return broken


def _keeps_its_own(part: tuple[str, ...], problem: Problem) -> str:
    """Why a part cannot have the numbers of others: some operator that writes it gives it its own, or none."""
    for name in part:
        unit = problem.producer.get(name)
        if unit is None:
            continue
        if unit.support is not None and unit.support.fixed:
            return f"{unit.label} gives its output numbers of its own"
        if all(not each.output.dtype.is_quantized for each in unit.signatures):
            return f"{unit.label} writes float only"
    return ""


def _merged_range(unit: Unit, problem: Problem, stats: Stats) -> Range | None:
    root = problem.group_of[unit.outputs[0].name or ""]
    total = _observed(problem.groups[root], problem, stats)
    for operand in unit.shared():
        array = constant_of(operand.value) if operand.constant else None
        if array is not None and array.size:
            one = Range(float(array.min()), float(array.max()))
            total = one if total is None else total.union(one)
    return total


def _observed(names: tuple[str, ...], problem: Problem, stats: Stats) -> Range | None:
    seen = [Range(s.low, s.high) for name in names if (s := stats.tensors.get(name)) is not None]
    total = seen[0] if seen else None
    for one in seen[1:]:
        total = one if total is None else total.union(one)
    return total


def _read_elsewhere(part: tuple[str, ...], problem: Problem, merge: Unit) -> bool:
    """Whether an operator that computes reads a member of this part."""
    members = frozenset(part)
    return any(
        o.name in members and o not in unit.shared()
        for unit in problem.readers_of(part)
        if unit is not merge
        for o in unit.operands
    )
