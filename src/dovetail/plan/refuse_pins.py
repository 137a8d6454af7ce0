"""Refuse the caller's pins that a solution does not honour, naming what was asked and what is possible there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dovetail.encoding import Encoding
from dovetail.errors import InputError
from dovetail.model.origin import nodes_of, origin_of
from dovetail.op_support import Precision, Signature
from dovetail.plan.constraints import Problem, Unit
from dovetail.plan.kernels import computing_in, has_kernel, possible, same_kind, usable
from dovetail.plan.pinned_groups import pinned_groups
from dovetail.plan.request import Pin, Pins
from dovetail.storage import Reason


def refuse_pins(
    problem: Problem, pins: Pins, groups: Mapping[str, Encoding], signatures: Mapping[str, Signature]
) -> None:
    """Raise InputError for the first operator or tensor that the caller pinned and that is planned otherwise.

    ``groups``: the encoding of each group. ``signatures``: those chosen for the units, before operands are narrowed.
    """
    of_groups = pinned_groups(problem, pins)
    for unit in problem.units:
        pin = pins.units.get(unit.name)
        if pin is None or pin.why is not Reason.PINNED:
            continue
        writes = {problem.group_of[v.name or ""] for v in unit.outputs}
        own = [root for root in writes if of_groups[root] is pin]  # the others are pinned as tensors, and checked below
        if not computing_in(unit, [signatures[unit.name]], pin.precision) or not all(
            _is_written(problem, unit, pin, groups[root]) for root in own
        ):
            raise InputError(_refusal(problem, pin, _unit_name(unit), possible(unit, _precisions(problem))))
    for name, pin in pins.groups.items():
        if pin.why is Reason.PINNED and not _is_stored(problem, name, pin, groups, signatures):
            names = _possible_storages(problem, name)
            raise InputError(_refusal(problem, pin, f"tensor {origin_of(problem.values[name]).name!r}", names))


def _is_written(problem: Problem, unit: Unit, pin: Pin, decided: Encoding) -> bool:
    """Whether the output has the pinned encoding, if the operator can write it at all."""
    if problem.table.quantizes_edges:
        return True
    kernels = computing_in(unit, usable(unit), pin.precision)
    wanted = pin.precision.activation
    return decided == wanted or not any(s.output == wanted for s in kernels)


def _is_stored(
    problem: Problem, name: str, pin: Pin, groups: Mapping[str, Encoding], signatures: Mapping[str, Signature]
) -> bool:
    """Whether a tensor has the pinned encoding.

    A target that quantizes on edges has it in float: then the consumers must read it in the pinned precision, as far as
    they have kernels for it, or its producer must compute in that precision.
    """
    wanted = pin.precision.activation
    if not problem.table.quantizes_edges:
        return groups[problem.group_of[name]] == wanted
    reads = list(_reads(problem, problem.groups[problem.group_of[name]], signatures))
    if not wanted.dtype.is_quantized:
        return all(not encoding.dtype.is_quantized for _, encoding in reads)
    with_kernel = [encoding for unit, encoding in reads if has_kernel(unit, pin.precision)]
    producer = problem.producer.get(name)
    computed = producer is not None and computing_in(producer, [signatures[producer.name]], pin.precision)
    return all(same_kind(encoding, wanted) for encoding in with_kernel) and bool(with_kernel or computed)


def _reads(
    problem: Problem, members: Sequence[str], signatures: Mapping[str, Signature]
) -> Iterator[tuple[Unit, Encoding]]:
    """The units that consume these tensors, other than to pass them through, with the encoding that they read."""
    for name in members:
        for unit in problem.readers.get(name, ()):
            for operand in unit.operands:
                slot = signatures[unit.name].slot(operand.slot)
                if operand.name == name and operand not in unit.shared() and slot is not None:
                    yield unit, slot.encoding


def _possible_storages(problem: Problem, name: str) -> list[str]:
    """The precisions in which a tensor can be kept: those that all writers of its group, or all consumers, have."""
    root = problem.group_of[name]
    units = problem.writers_of(root) or problem.readers_of(problem.groups[root])
    if problem.table.quantizes_edges:
        units = [*units, *problem.readers_of(problem.groups[root])]
    choices = [possible(unit, _precisions(problem)) for unit in units]
    return [p.name for p in _precisions(problem) if all(p.name in names for names in choices)]


def _precisions(problem: Problem) -> list[Precision]:
    return list(problem.table.precisions.values())


def _unit_name(unit: Unit) -> str:
    name = next((name for node in unit.nodes for name in nodes_of(node)), unit.name)
    return f"{unit.label} {name!r}"


def _refusal(problem: Problem, pin: Pin, where: str, names: Sequence[str]) -> str:
    asked, target = pin.precision.name, problem.table.target
    if asked in names:
        return (
            f"{pin.detail}: {where} cannot be kept in {asked}, because it shares its quantization with a tensor that "
            f"is kept in another precision, or that has no {asked} kernel on {target}"
        )
    choices = f"possible here: {', '.join(names)}" if names else "no precision can be chosen here"
    return f"{pin.detail}: {where} cannot be kept in {asked} on {target}; {choices}"
