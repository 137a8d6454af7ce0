"""``--keep GLOB=PRECISION`` as pins: patterns are matched once, on the original names in the rewritten graph."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from dovetail.encoding import Encoding, Granularity
from dovetail.errors import InputError
from dovetail.model.origin import fused_tensors_of, nodes_of, origin_of
from dovetail.op_support import FP16, FP32, W8, Precision
from dovetail.plan.blocks import WEIGHT
from dovetail.plan.constraints import Problem, Unit
from dovetail.plan.imported_qparams import ImportedQParams
from dovetail.plan.kernels import has_kernel
from dovetail.plan.request import Keep, Pin, Pins
from dovetail.storage import Reason

# Operators that a quantizer decides on: what is between them follows.
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# How many similar names the error message lists.
_SHOWN = 3
_WILDCARDS = frozenset("*?[")


def resolve_keeps(problem: Problem, keeps: Sequence[Keep]) -> Pins:
    """The pins of every tensor and operator that a pattern matches; a pattern that matches nothing is an error."""
    groups: dict[str, Pin] = {}
    units: dict[str, Pin] = {}
    for keep in keeps:
        pin = Pin(keep.precision, Reason.PINNED, str(keep))
        values, operators, producers = _matched(problem, keep)
        if not values and not operators:
            raise InputError(_no_match(problem, keep))
        if not _WILDCARDS.isdisjoint(keep.pattern):
            values, operators = _with_kernel(problem, keep, values, [*operators, *producers])
        else:
            operators += [unit for unit in producers if has_kernel(unit, keep.precision)]
        groups.update(dict.fromkeys(values, pin))
        units.update(dict.fromkeys([unit.name for unit in operators], pin))
    return Pins(units, groups)


def kept_units(problem: Problem, keep: Keep) -> list[Unit]:
    """The operators that a pattern matches, by their names or by that of a tensor that they write; maybe none."""
    _, operators, producers = _matched(problem, keep)
    return [unit for unit in (*operators, *producers) if has_kernel(unit, keep.precision)]


def _matched(problem: Problem, keep: Keep) -> tuple[list[str], list[Unit], list[Unit]]:
    """The tensors that a pattern matches, the operators that it matches, and those that write these tensors."""
    values = [v.name or "" for v in _values(problem) if _matches(keep, _value_names(v))]
    operators = [unit for unit in problem.units if _matches(keep, _unit_names(unit))]
    return values, operators, [problem.producer[name] for name in values if name in problem.producer]


def _with_kernel(
    problem: Problem, keep: Keep, values: list[str], operators: list[Unit]
) -> tuple[list[str], list[Unit]]:
    """Of what a pattern with wildcards matches, the operators that have kernels of this precision, and their tensors.

    A whole block can be kept in int8 although its LayerNormalization has no int8 kernel anywhere on the target.
    """
    kept = [
        unit
        for unit in operators
        if has_kernel(unit, keep.precision)
        # An operator that passes quantization through has that of the operators before it.
        and (not unit.shared() or all(_has_kernels(problem, v.name or "", keep) for v in unit.outputs))
    ]
    tensors = [name for name in values if _has_kernels(problem, name, keep)]
    if not kept and not tensors:
        inputs = {f"input {name!r}" for name in values if name not in problem.producer}
        names = ", ".join(sorted({unit.label for unit in operators} | inputs))
        raise InputError(f"{keep}: {problem.table.target} has no {keep.precision.name} kernel for {names}")
    return tensors, kept


def _has_kernels(problem: Problem, name: str, keep: Keep) -> bool:
    """Whether the operators that decide how a tensor is stored have kernels for a precision."""
    root = problem.group_of[name]
    writers = problem.writers_of(root)
    if writers and not problem.table.quantizes_edges:
        return all(has_kernel(unit, keep.precision) for unit in writers)
    return any(has_kernel(unit, keep.precision) for unit in problem.readers_of(problem.groups[root]))


def left_in_float(problem: Problem, imported: ImportedQParams) -> Pins:
    """Pins to float for the layers of which a quantized model has no operand quantized: its tool left them in float.

    Only where the target can run float operators between quantized ones.
    """
    if not problem.table.runs_float_between:
        return Pins()
    precision = FP16 if problem.table.float_encoding == FP16.activation else FP32
    pin = Pin(precision, Reason.RECORDED, "in float, as in the input model")
    known = {*imported.tensors, *imported.implied, *imported.constants}
    return Pins({
        unit.name: pin
        for unit in problem.units
        if unit.nodes[0].op_type in _LAYERS
        and not any(known & set(_value_names(operand.value)) for operand in unit.operands)
    })  # fmt: skip


def imported_pins(problem: Problem, imported: ImportedQParams, base: Precision) -> Pins:
    """The pins that follow from imported qparams: what was left in float, and weights in another precision."""
    return left_in_float(problem, imported) | as_in_file(problem, imported, base)


def as_in_file(problem: Problem, imported: ImportedQParams, base: Precision) -> Pins:
    """Pins for what a file with qparams has in float, and for layers whose weights have another encoding than most.

    An operator that writes a float tensor, or that has a float weight, computes in float. A layer whose weight has
    another width or other blocks than ``base`` is pinned to the precision of the target with such weights, if any. A
    layer whose blocks or asymmetric int4 values the target does not have gets 8 bits per channel, which keep the values
    best.
    """
    in_float = FP16 if problem.table.float_encoding == FP16.activation else FP32
    pin = Pin(in_float, Reason.RECORDED, "float in the file with the scales")
    values = [v.name or "" for v in _values(problem) if imported.floats & set(_value_names(v))]
    units = {
        problem.producer[name].name: pin
        for name in values
        if name in problem.producer and has_kernel(problem.producer[name], in_float)
    }
    for unit in problem.units:
        names = [name for o in unit.operands if o.constant and o.slot == WEIGHT for name in _value_names(o.value)]
        given = next((imported.constants[name][0] for name in names if name in imported.constants), None)
        if imported.floats & set(names) and has_kernel(unit, in_float):
            units[unit.name] = pin
        elif given is not None and unit.nodes[0].op_type in _LAYERS:
            reason = _why_not_symmetric(problem, given.encoding)
            reason = reason or _why_other_blocks(problem, imported, base, given.encoding, names)
            other = _with_weight(problem, base, W8 if reason else given.encoding) or (base if reason else None)
            if other is not None:
                detail = f": {reason}" if reason else ", as the weight in the file with the scales"
                units[unit.name] = Pin(other, Reason.RECORDED, f"{other.name}{detail}")
    return Pins(units, dict.fromkeys(values, pin))


def _why_not_symmetric(problem: Problem, weight: Encoding) -> str:
    """Why a weight of few bits per channel cannot keep its zero points; empty if it can, or if it has none."""
    if weight.symmetric or weight.is_blocked or not weight.dtype.is_integer or weight.dtype.bits >= W8.dtype.bits:
        return ""
    of_target = [precision.weight for precision in problem.table.precisions.values()]
    if any(_same_weight(other, weight) and not other.symmetric for other in of_target):
        return ""
    return f"its values in the file are not symmetric, and {problem.table.target} has no such {weight.dtype} weights"


def _why_other_blocks(
    problem: Problem, imported: ImportedQParams, base: Precision, weight: Encoding, names: Sequence[str]
) -> str:
    """Why a weight cannot keep the blocks that it has in the file; empty if it can, or if it has none."""
    if not weight.is_blocked:
        return ""
    if imported.unfit & set(names):
        return "its blocks in the file are not symmetric, or not along the input channels"
    if reason := problem.table.why_no_block_size(weight):
        return f"its blocks in the file are of {weight.block_size}: {reason}"
    given = {params.encoding.granularity for several in imported.constants.values() for params in several}
    expanded = Granularity.EXPANDED_BLOCK in {*given, base.weight.granularity}
    if weight.granularity is Granularity.BLOCK and expanded and not problem.table.mixes_blocks:
        return f"{problem.table.target} has no float scales per block beside integer scales"
    if not any(_same_weight(precision.weight, weight) for precision in problem.table.precisions.values()):
        return f"{problem.table.target} has no {weight.dtype} weights in such blocks"
    return ""


def _with_weight(problem: Problem, base: Precision, weight: Encoding) -> Precision | None:
    """The precision with the activations of ``base`` and such weights; None if that is ``base`` or there is none."""
    if _same_weight(base.weight, weight) and base.weight.block_size == weight.block_size:
        return None
    for precision in problem.table.precisions.values():
        if precision.activation == base.activation and _same_weight(precision.weight, weight):
            return replace(precision, weight=replace(precision.weight, block_size=weight.block_size))
    return None


def _same_weight(a: Encoding, b: Encoding) -> bool:
    """Whether both have the same bits and blocks; a scale of the whole weight counts as one per channel."""
    blocks = [e.granularity if e.is_blocked else Granularity.AXIS for e in (a, b)]
    return a.dtype.bits == b.dtype.bits and a.dtype.is_integer == b.dtype.is_integer and blocks[0] is blocks[1]


def _no_match(problem: Problem, keep: Keep) -> str:
    """The error message for a pattern that matches nothing, with the most similar names."""
    names = {name for v in _values(problem) for name in _value_names(v)}
    names |= {name for unit in problem.units for name in _unit_names(unit)}
    text = f"{keep}: no tensor or node name matches {keep.pattern!r}"
    near = [name for name in sorted(names) if fnmatch.fnmatchcase(name.lower(), f"*{keep.pattern.lower()}*")]
    near = near or difflib.get_close_matches(keep.pattern.strip("*"), sorted(names), _SHOWN, cutoff=0.5)
    return f"{text}; similar names: {', '.join(map(repr, near[:_SHOWN]))}" if near else text


def _values(problem: Problem) -> Iterator[ir.Value]:
    yield from problem.inputs
    yield from (v for unit in problem.units for v in unit.outputs)


def _value_names(value: ir.Value) -> list[str]:
    return [name for name in (*origin_of(value).names, value.name) if name]


def _unit_names(unit: Unit) -> list[str]:
    """The names that match a unit: its nodes, the original nodes they replace, its inner tensors, its constants."""
    inside = [v for node in unit.nodes[:-1] for v in node.outputs]
    constants = [operand.value for operand in unit.operands if operand.constant]
    tensors = [name for v in (*inside, *constants) for name in _value_names(v)]
    nodes = [name for node in unit.nodes for name in (*nodes_of(node), *fused_tensors_of(node), node.name) if name]
    return [*nodes, *tensors]


def _matches(keep: Keep, names: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, keep.pattern) for name in names)
