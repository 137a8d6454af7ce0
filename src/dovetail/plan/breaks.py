"""Inputs of merging operators (Concat) for which an explicit requantization is better than shared qparams."""

from __future__ import annotations

from collections.abc import Collection

from dovetail.edge import Edge
from dovetail.model.edit import constant_of
from dovetail.plan.constraints import Problem, Unit, sharing_without, with_conversions, with_group_divided
from dovetail.plan.qparams import Range
from dovetail.stats import Stats

# A range four times as wide costs 12 dB of SQNR on an 8-bit grid: more than a saved conversion is worth.
MAX_RANGE_GROWTH = 4.0


def costly_merges(problem: Problem, stats: Stats) -> dict[Edge, str]:
    """The edges into merging operators (Concat with one scale for all inputs) that should convert instead of share.

    A tensor with fixed qparams, or in float, cannot share. Any other tensor gains from its own range only if another
    operator consumes it too: what goes through the merge ends up on the merged range anyway.
    """
    conversions: dict[Edge, str] = {}
    for unit in problem.units:
        operands = unit.shared()
        if len(operands) < 2 or not unit.outputs:
            continue
        merged = _merged_range(unit, problem, stats)
        for operand in operands:
            if operand.constant:
                continue
            members = sharing_without(problem, operand.name, without=unit)
            if reason := _why_not_shared(members, problem):
                conversions[operand.edge] = f"explicit conversion: {reason}"
                continue
            own = _observed(members, stats)
            if own is None or merged is None or not _consumed_elsewhere(members, problem, unit):
                continue
            growth = merged.width / own.width if own.width > 0 else 1.0
            if growth > MAX_RANGE_GROWTH:
                conversions[operand.edge] = (
                    f"explicit conversion: one scale for all inputs of {unit.label} would widen this range "
                    f"{growth:.3g} times"
                )
    return conversions


def negative_merges(problem: Problem, stats: Stats, separate: Collection[Edge] = ()) -> dict[Edge, str]:
    """The edges on which the output of a chain that is fused only from zero on converts into a negative range.

    Sharing that range would take the chain apart, for all consumers of its output. Without another consumer that costs
    no more than a conversion and rounds once less. The last merge comes first, because a conversion there leaves the
    ranges before it as they are. ``separate``: the edges that convert already.
    """
    conversions: dict[Edge, str] = {}
    problem = with_conversions(problem, separate)
    for unit in reversed(problem.units):
        operands = unit.shared()
        for operand in operands if len(operands) > 1 and unit.outputs else ():
            if operand.constant or operand.edge in separate:
                continue
            members = sharing_without(problem, operand.name, without=unit)
            own, merged = _observed(members, stats), _merged_range(unit, problem, stats)
            if own is None or merged is None or not own.low >= 0 > merged.low:
                continue
            chain = next((label for name in members if (label := _fused_from_zero(problem.producer.get(name)))), "")
            if chain and _consumed_elsewhere(members, problem, unit):
                conversions[operand.edge] = (
                    f"explicit conversion: with the negative range of {unit.label}, {chain} could not be fused"
                )
                problem = with_group_divided(problem, problem.group_of[operand.name], {*separate, *conversions})
    return conversions


def _fused_from_zero(unit: Unit | None) -> str:
    """The label of a unit that is fused only if the zero point of its output is the lowest integer."""
    return unit.label if unit is not None and unit.chain is not None and unit.chain.at_lowest else ""


def _why_not_shared(members: tuple[str, ...], problem: Problem) -> str:
    """Why these tensors cannot take the merged qparams: a producer fixes its output's scale, or writes only float."""
    for name in members:
        unit = problem.producer.get(name)
        if unit is None:
            continue
        if unit.support is not None and unit.support.fixed:
            return f"{unit.label} has a fixed output scale and zero point"
        if all(not signature.output.dtype.is_quantized for signature in unit.signatures):
            return f"{unit.label} writes only float"
    return ""


def _merged_range(unit: Unit, problem: Problem, stats: Stats) -> Range | None:
    """The range of the output of a merge, which covers the inputs that are converted into it."""
    names = [unit.outputs[0].name or "", *(operand.name for operand in unit.shared() if not operand.constant)]
    roots = dict.fromkeys(problem.group_of[name] for name in names)
    total = _observed(tuple(member for root in roots for member in problem.groups[root]), stats)
    for operand in unit.shared():
        array = constant_of(operand.value) if operand.constant else None
        if array is not None and array.size:
            constant = Range(float(array.min()), float(array.max()))
            total = constant if total is None else total.union(constant)
    return total


def _observed(names: tuple[str, ...], stats: Stats) -> Range | None:
    """The union of the calibrated ranges of these tensors; None if none of them was observed."""
    ranges = [Range(s.low, s.high) for name in names if (s := stats.tensors.get(name)) is not None]
    total = ranges[0] if ranges else None
    for observed in ranges[1:]:
        total = observed if total is None else total.union(observed)
    return total


def _consumed_elsewhere(members: tuple[str, ...], problem: Problem, merge: Unit) -> bool:
    """Whether another operator than the merge, one that does not pass quantization through, consumes a member."""
    names = frozenset(members)
    return any(
        o.name in names and o not in unit.shared()
        for unit in problem.readers_of(members)
        if unit is not merge
        for o in unit.operands
    )
