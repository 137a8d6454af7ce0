"""How much of a plan is in which precision: MACs in float, conversions between precisions, islands."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dovetail.encoding import DType
from dovetail.model.macs import macs_of
from dovetail.plan.constraints import Operand, Problem, Unit
from dovetail.storage import Plan, Storage


def unit_macs(unit: Unit) -> int:
    """The MACs of all nodes of a unit."""
    return sum(map(macs_of, unit.nodes))


def float_share(problem: Problem, plan: Plan) -> float:
    """The fraction of all MACs that are computed in float; 0 for a graph without any."""
    macs = {unit.name: unit_macs(unit) for unit in problem.units}
    total = sum(macs.values())
    in_float = sum(macs[unit.name] for unit in problem.units if macs[unit.name] and is_float(unit, plan))
    return in_float / total if total else 0.0


def is_float(unit: Unit, plan: Plan) -> bool:
    """Whether an operator with MACs computes in float: it does if its weight, or any of its activations, is float."""
    weights = [storage_read(plan, operand) for operand in unit.operands if operand.constant and operand.slot == 1]
    read = weights or [storage_read(plan, operand) for operand in unit.operands if not operand.constant]
    return any(storage is None or not storage.dtype.is_quantized for storage in read)


def storage_read(plan: Plan, operand: Operand) -> Storage | None:
    """The storage in which an operator reads an operand."""
    choice = plan.edges.get(operand.edge)
    if choice is None and not operand.constant:
        choice = plan.tensors.get(operand.name)
    return None if choice is None else choice.storage


def boundaries(problem: Problem, plan: Plan) -> int:
    """How often a tensor is converted to another precision for its consumers; equal conversions of one tensor are one.

    The target's graph inputs and outputs do not count.
    """
    return len(set(_conversions(problem, plan)))


def _conversions(problem: Problem, plan: Plan) -> Iterator[tuple[str, DType]]:
    for unit in problem.units:
        for operand in unit.operands:
            choice, stored = plan.edges.get(operand.edge), plan.tensors.get(operand.name)
            if operand.constant or choice is None or stored is None or operand.name not in problem.producer:
                continue
            if _kind(choice.storage.dtype) != _kind(stored.storage.dtype):
                yield operand.name, choice.storage.dtype


def _kind(dtype: DType) -> tuple[int, bool]:
    """What distinguishes precisions: bit width, and whether it is quantized; not whether integers are signed."""
    return dtype.bits, dtype.is_quantized


def islands(problem: Problem, units: Collection[str]) -> list[list[Unit]]:
    """These operators as connected parts of the graph; operators that pass quantization through connect them."""
    members = {unit.name: unit for unit in problem.units if unit.name in units or unit.shared()}
    seen: set[str] = set()
    parts = []
    for name in (unit.name for unit in problem.units if unit.name in units):
        if name in seen:
            continue
        part, waiting = list[str](), [name]
        seen.add(name)
        while waiting:
            current = waiting.pop()
            part.append(current)
            for neighbor in _neighbors(problem, members[current]):
                if neighbor in members and neighbor not in seen:
                    seen.add(neighbor)
                    waiting.append(neighbor)
        parts.append([unit for unit in problem.units if unit.name in part and unit.name in units])
    return parts


def _neighbors(problem: Problem, unit: Unit) -> list[str]:
    producers = [problem.producer.get(operand.name) for operand in unit.operands if not operand.constant]
    readers = problem.readers_of(value.name or "" for value in unit.outputs)
    return [neighbor.name for neighbor in (*producers, *readers) if neighbor is not None]
