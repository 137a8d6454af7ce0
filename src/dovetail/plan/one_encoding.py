"""Plan without conversions on single inputs, for a format that has one encoding per tensor (``OpTable.one_encoding``).

In such a file, an operator computes in float if a tensor of it has no entry, and in integers otherwise. So

- a tensor that one consumer must read as symmetric is symmetric itself, which is what AIMET does for the second operand
  of a 16-bit MatMul;
- a tensor between float and integer operators is quantized where it is written;
- where neither is possible, the consumer computes in float.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from dovetail.edge import Edge
from dovetail.encoding import Encoding, QParams
from dovetail.model.origin import origin_of
from dovetail.op_support import Precision
from dovetail.plan.constraints import Operand, Problem, Unit
from dovetail.plan.imported_qparams import ImportedQParams
from dovetail.plan.kernels import computing_in, usable
from dovetail.plan.pinned_groups import pinned_tensors
from dovetail.plan.request import Pin, Pins
from dovetail.plan.solve import Solution
from dovetail.storage import Choice, Reason

_WHY = "what ships has one encoding per tensor"


def given_groups(problem: Problem, imported: ImportedQParams | None) -> frozenset[str]:
    """The groups with an integer entry in the caller's file, which is kept: what it cannot say is reported."""
    if imported is None or not imported.from_file:
        return frozenset()
    return frozenset(
        root
        for name, root in problem.group_of.items()
        if any(each in imported.tensors for each in (*origin_of(problem.values[name]).names, name))
    )


def symmetric_reads(problem: Problem, solution: Solution, given: Collection[str]) -> dict[str, Encoding]:
    """The groups of which a consumer requires symmetric values, by representative, with the encoding it requires.

    ``given``: the groups whose qparams are those of the caller's file.
    """
    found: dict[str, Encoding] = {}
    for unit in problem.units:
        for operand in unit.operands:
            if operand.constant or operand in unit.shared():
                continue
            root, required = problem.group_of[operand.name], _read(problem, solution, unit, operand)
            if root not in given and required is not None and _can_be_symmetric(problem, solution, root, required):
                found.setdefault(root, required)
    return found


def also_in_float(problem: Problem, solution: Solution, pins: Pins, given: Collection[str]) -> Pins:
    """The operators to compute in float as well: those between float operators, so that these are connected; without
    any, those of which an input would need a conversion. With them the inputs of the graph that these need in float."""
    precisions = problem.table.precisions.values()
    in_float = next((p for p in precisions if p.activation == problem.table.float_encoding), None)
    if in_float is None:
        return Pins()
    free = {u.name: u for u in problem.units if u.name not in pins.units and computing_in(u, usable(u), in_float)}
    pinned = frozenset(pinned_tensors(problem, pins))
    units = {u.name: "it is between float operators" for u in free.values() if _is_between(problem, solution, u, given)}
    inputs: dict[str, str] = {}
    if not units:
        units = _with_conversions(problem, solution, free, pinned, given)
        for unit in problem.units:
            for name in _too_narrow(problem, solution, unit, given):
                source = _computed_by(problem, name)
                text = f"{unit.label} {unit.name!r} has no kernel that reads it with so few bits beside a float tensor"
                if source is None and problem.group_of[name] not in pinned:
                    inputs[name] = text
                elif source is not None and source.name in free:
                    units[source.name] = text
    return Pins(_pins(in_float, units), _pins(in_float, inputs))


def _pins(in_float: Precision, reasons: Mapping[str, str]) -> dict[str, Pin]:
    return {name: Pin(in_float, Reason.NEIGHBOURS, f"kept in float: {text}") for name, text in reasons.items()}


def _with_conversions(
    problem: Problem, solution: Solution, free: Mapping[str, Unit], pinned: Collection[str], given: Collection[str]
) -> dict[str, str]:
    """The operators that would read a tensor in another dtype than its entry has, with the reason."""
    return {
        unit.name: (
            "an encodings file has one entry per tensor, so it cannot give "
            f"{operand.name!r} another dtype for this {unit.label}"
        )
        for unit in free.values()
        for operand in unit.operands
        if not operand.constant and _needs_conversion(problem, solution, unit, operand, pinned, given)
    }


def _too_narrow(problem: Problem, solution: Solution, unit: Unit, given: Collection[str]) -> Iterator[str]:
    """The tensors that a float operator cannot read beside a float tensor, because they have too few bits."""
    least = 0 if unit.support is None else unit.support.narrowest_with_float
    if not least or not _computes_in_float(solution, unit) or not _reads_float(problem, solution, unit):
        return
    for operand in unit.operands:
        if operand.constant or problem.group_of[operand.name] in given:
            continue
        dtype = solution.groups[problem.group_of[operand.name]].encoding.dtype
        if dtype.is_quantized and dtype.bits < least:
            yield operand.name


def _is_between(problem: Problem, solution: Solution, unit: Unit, given: Collection[str]) -> bool:
    """Whether an integer operator reads what a float operator writes, and only float operators read what it writes.

    Operators that only move data are looked through.
    """
    if _computes_in_float(solution, unit) or not unit.outputs:
        return False
    root = problem.group_of[unit.outputs[0].name or ""]
    if root in given:
        return False
    members = problem.groups[root]
    readers = [u for u in problem.readers_of(members) if not any(o.name in members for o in u.shared())]
    if not readers or {value.name for value in problem.outputs}.intersection(members):
        return False
    sources = [_computed_by(problem, operand.name) for operand in unit.operands if not operand.constant]
    fed = any(source is not None and _computes_in_float(solution, source) for source in sources)
    return fed and all(_computes_in_float(solution, reader) for reader in readers)


def _computed_by(problem: Problem, name: str) -> Unit | None:
    """The unit that computes a tensor, before it is moved; None for an input of the graph."""
    producer = problem.producer.get(name)
    while producer is not None and (moved := [o for o in producer.shared() if not o.constant]):
        producer = problem.producer.get(moved[0].name)
    return producer


def _computes_in_float(solution: Solution, unit: Unit) -> bool:
    """Whether a unit reads activations in float."""
    slots = [solution.signatures[unit.name].slot(operand.slot) for operand in unit.operands if not operand.constant]
    return any(slot is not None and not slot.encoding.dtype.is_quantized for slot in slots)


def _needs_conversion(
    problem: Problem,
    solution: Solution,
    unit: Unit,
    operand: Operand,
    pinned: Collection[str],
    given: Collection[str],
) -> bool:
    """Whether a unit needs a tensor in an encoding that the tensor itself cannot have."""
    root, required = problem.group_of[operand.name], _read(problem, solution, unit, operand)
    if required is None or required == solution.groups[root].encoding:
        return False
    if solution.groups[root].is_float:
        return root in pinned or not _is_quantized_where_written(problem, solution, operand.name)
    # Narrower and wider operands keep their conversion: in float, all attention of a chip without int16 would be.
    same_width = required.dtype.bits == solution.groups[root].encoding.dtype.bits
    return same_width and root not in given and not _can_be_symmetric(problem, solution, root, required)


def _read(problem: Problem, solution: Solution, unit: Unit, operand: Operand) -> Encoding | None:
    """The quantized encoding in which a unit reads an activation; None if it reads float."""
    slot = solution.signatures[unit.name].slot(operand.slot)
    encoding = None if slot is None else slot.encoding
    if operand in unit.shared():
        encoding = solution.groups[problem.group_of[unit.outputs[0].name or ""]].encoding
    return encoding if encoding is not None and encoding.dtype.is_quantized else None


def _can_be_symmetric(problem: Problem, solution: Solution, root: str, required: Encoding) -> bool:
    """Whether a quantized group can have the values of a symmetric encoding: no operator fixes its scale."""
    own = solution.groups[root].encoding
    if own == required or not required.symmetric or own.dtype.bits != required.dtype.bits or not own.dtype.is_integer:
        return False
    supports = [unit.support for unit in problem.writers_of(root) if unit.support is not None]
    return not any(entry.dtype is own.dtype for support in supports for entry in support.fixed)


def _is_quantized_where_written(problem: Problem, solution: Solution, name: str) -> bool:
    """Whether a float tensor can be stored as all its consumers read it, and its operator is still seen as float.

    An operator that moves data is not: its input would get the encoding of its output. Neither is one all of whose
    inputs are quantized: with a quantized output it would compute in integers.
    """
    producer = problem.producer.get(name)
    if name in {value.name for value in problem.outputs}:
        return False
    if producer is not None and (producer.shared() or not _reads_float(problem, solution, producer)):
        return False
    reads = {
        _source(problem, solution, u, o) for u in problem.readers.get(name, ()) for o in u.operands if o.name == name
    }
    return len(reads) == 1 and None not in reads


def _reads_float(problem: Problem, solution: Solution, unit: Unit) -> bool:
    """Whether a unit reads an activation that is stored in float, without a conversion."""
    return any(
        solution.groups[problem.group_of[operand.name]].is_float and _read(problem, solution, unit, operand) is None
        for operand in unit.operands
        if not operand.constant
    )


def _source(problem: Problem, solution: Solution, unit: Unit, operand: Operand) -> tuple[str, Encoding] | None:
    """What decides the qparams with which a unit reads a tensor: its output, or the tensor itself."""
    read = _read(problem, solution, unit, operand)
    if read is None:
        return None
    return (problem.group_of[unit.outputs[0].name or ""] if operand in unit.shared() else "", read)


def stored_as_read(
    problem: Problem, tensors: Mapping[str, Choice], edges: Mapping[Edge, Choice], pins: Pins
) -> tuple[dict[str, Choice], dict[Edge, Choice]]:
    """Store float tensors that all consumers quantize alike as they read them, instead of converting every input.

    A tensor that is pinned to float stays in float.
    """
    pinned = pinned_tensors(problem, pins)
    stored, left = dict(tensors), dict(edges)
    outputs = {value.name for value in problem.outputs}
    for name, choice in tensors.items():
        producer = problem.producer.get(name)
        reads = [o.edge for unit in problem.readers.get(name, ()) for o in unit.operands if o.name == name]
        if choice.storage.dtype.is_quantized or name not in problem.group_of or name in outputs or not reads:
            continue
        if problem.group_of[name] in pinned:
            continue
        if producer is not None and (producer.shared() or not _has_float_input(producer, tensors, edges)):
            continue
        read = {edge: edges[edge] for edge in reads if edge in edges}
        storages = [each.storage for each in read.values()]
        if len(read) < len(reads) or not isinstance(storages[0], QParams) or any(s != storages[0] for s in storages):
            continue
        writer = "the graph input" if producer is None else f"{producer.label} in {choice.storage.dtype}"
        text = f"written by {writer}, quantized as its consumers read it: {_WHY}; {read[reads[0]].detail}"
        stored[name] = Choice(storages[0], Reason.OPERAND, text, scale_from=read[reads[0]].scale_from)
        for edge in reads:
            del left[edge]
    return stored, left


def _has_float_input(unit: Unit, tensors: Mapping[str, Choice], edges: Mapping[Edge, Choice]) -> bool:
    """Whether a unit reads an activation that is stored in float, without a conversion."""
    return any(
        not tensors[o.name].storage.dtype.is_quantized and o.edge not in edges for o in unit.operands if not o.constant
    )
