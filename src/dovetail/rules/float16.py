"""Q5: values that a float16 operator reads or computes and float16 does not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.encoding import DType, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import attribute, constant_of, is_op, scalar_of
from dovetail.model.origin import origin_of
from dovetail.model.place import at_tensor, named
from dovetail.model.sentinels import Effect, effect_at, reach_of
from dovetail.plan.constraints import Unit
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import operations
from dovetail.rules.rule import rule
from dovetail.rules.stored import representable_range

LARGEST_FLOAT16 = 65504.0
# The square of a larger magnitude is above the largest float16 value.
LARGEST_SQUARED = LARGEST_FLOAT16**0.5
# Bounded operators, for which infinity and the largest float16 value are the same as what they stand for.
_BOUNDED_OPS = ("Clip", "HardSigmoid", "Sigmoid", "Tanh")


@rule("Q511")
def value_beyond_float16(subject: CheckInput) -> Iterator[Finding]:
    """A float16 operator reads or computes values above 65504, the largest value of float16.

    ## What it finds
    Tensors with a range beyond ±65504 that an operator in float16 reads or computes, on targets whose float type is
    float16. The range is that of the calibration data (`dovetail fit`, `check --calib`), or what the scale and zero
    point of the tensor represent (QDQ models, encodings files). A square, `x * x` or `Pow(x, 2)`, is also reported if
    only the range of `x` is known and exceeds 255.9: the sum of squares of a LayerNorm or RMSNorm that is written with
    several operators is the usual case. So is a ReduceL2 above 255.9, which sums squares. Operators that run in
    integers are not reported, nor values that only a mask sets: what goes, perhaps in a sum, to a Softmax, an ArgMax or
    a TopK of which only the indices are used, and is too low (for an ArgMin and the smallest of a TopK, too high), and
    what only Sigmoid, Tanh or Clip read. There is one finding for each chain of operators, at its first tensor, with
    the number of tensors after it.

    ## Why it matters
    float16 has infinity above 65504, and some hardware 65504 instead. Either way the norm, and all after it, is wrong.
    The simulation does not show it, because ONNX Runtime computes most float16 operators in float32. A tensor that is
    stored as uint16 overflows as well if a float16 operator writes or reads it. A fused kernel may hold float32 between
    operators; a compiler's layer list does not say so.

    ## How to fix it
    If it is a norm, use LayerNormalization, where the target computes it without overflow (`dovetail fit` fuses the
    operators of a LayerNorm). Or multiply its input by a constant such as 1/64 before it is squared, and epsilon by the
    square of the constant. Or quantize the operators to 16 bits (`--precision w8a16`), which have no such limit.

    ## Seen on
    - every target, by arithmetic: 256 squared is 65536.
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated, `--precision fp16`
      (tests/backends/qnn_htp/test_float16_overflow.py): HTP saturates, and computes LayerNormalization without
      overflow. An RMSNorm of Mul, ReduceMean, Sqrt and Div is at 64 dB against float for |x| up to 100, 17 dB for 1000
      and -4.5 dB for 4000; at 65 dB with its input multiplied by 1/64 and in w8a16; and still at -4.5 dB with `--keep
      q=w8a16` for the square alone. A ReduceL2 of 64 elements is at 0.4 dB for 4000. LayerNormalization is at 70 dB for
      4000, also as seven operators, which `fit` fuses, as `x / ReduceL2(x)`; ReduceMean and MatMul whose internal sums
      exceed 65504 are at 70 dB or more.
    """
    if subject.table.float_encoding.dtype is not DType.F16 or not _is_float16_file(subject):
        return
    overflows: dict[ir.Value, tuple[_Range, Unit]] = {}
    writers: dict[ir.Value, Unit] = {}
    for unit in _float_units(subject):
        writers.update(dict.fromkeys(unit.outputs, unit))
        values = (*(operand.value for operand in unit.operands if not operand.constant), *unit.outputs)
        for value in values:
            known = None if value in overflows or not _is_stored(subject, value) else _range_of(subject, value)
            limit = LARGEST_SQUARED if value in unit.outputs and is_op(unit.nodes[-1], "ReduceL2") else LARGEST_FLOAT16
            if known is not None and known.largest > limit and not _is_harmless(value, known):
                overflows[value] = known, unit
    chains = Counter(_first_of_chain(value, overflows, writers) for value in overflows)
    for value, count in chains.items():
        yield _overflow(value, *overflows[value], count - 1)


@dataclass(frozen=True, slots=True)
class _Range:
    """What is known about a tensor. ``source``: the tensor of which it is the square, if only that one's is known."""

    low: float
    high: float
    source: ir.Value | None = None

    @property
    def largest(self) -> float:
        return max(abs(self.low), abs(self.high))


def _is_float16_file(subject: CheckInput) -> bool:
    """Whether float operators compute in float16; a target that quantizes on edges takes the types of a QDQ model."""
    if subject.plan is None or subject.raw is None or not subject.table.quantizes_edges:
        return True
    return any(value.dtype is ir.DataType.FLOAT16 for node in subject.raw.graph for value in node.outputs)


def _float_units(subject: CheckInput) -> Iterator[Unit]:
    """The operators that compute in float: as planned, or in every plan if there is none."""
    if subject.plan is not None:
        yield from (row.unit for row in operations(subject) if row.outputs and not row.is_quantized)
        return
    for unit in subject.problem.units:
        if not any(signature.output.dtype.is_quantized for signature in unit.signatures):
            yield unit


def _is_stored(subject: CheckInput, value: ir.Value) -> bool:
    """Whether a tensor is not between fused operators."""
    choice = None if subject.plan is None else subject.plan.tensors.get(str(value.name))
    return choice is None or choice.is_stored


def _range_of(subject: CheckInput, value: ir.Value) -> _Range | None:
    """The range of a tensor: of the calibration data, of its scale, or that of the square of a known one."""
    name, node = str(value.name), value.producer()
    stats = None if subject.stats is None else subject.stats.tensors.get(name)
    if stats is not None:
        return _Range(stats.low, stats.high)
    choice = None if subject.plan is None else subject.plan.tensors.get(name)
    if choice is not None and isinstance(choice.storage, QParams) and choice.storage.dtype.is_integer:
        return _Range(*representable_range(choice.storage))
    source = None if node is None or not node.inputs else node.inputs[0]
    if node is None or source is None or constant_of(source) is not None:
        return None
    if is_op(node, *DATA_MOVEMENT_OPS):
        return _range_of(subject, source)
    known = _range_of(subject, source) if _is_square(node) else None
    return None if known is None or known.source is not None else _Range(0.0, known.largest**2, source)


def _is_square(node: ir.Node) -> bool:
    """Whether an operator computes the square of its first input."""
    if is_op(node, "Mul"):
        return node.inputs[0] is node.inputs[1]
    return is_op(node, "Pow") and scalar_of(node.inputs[1]) == 2.0


def _is_harmless(value: ir.Value, known: _Range) -> bool:
    """Whether values that are too large need not be exact for any operator that reads them, perhaps in a sum."""
    reach = reach_of(value)
    if reach.output is not None or not reach.readers:
        return False
    return all(index == 0 and _is_harmless_to(node, known) for node, index in reach.readers)


def _is_harmless_to(node: ir.Node, known: _Range) -> bool:
    """Whether an operator bounds its input, or whether what is too large is what it masks or does not select."""
    effect = Effect.SATURATES if is_op(node, *_BOUNDED_OPS) else effect_at(node, 0)
    if effect is None or effect is Effect.SATURATES:
        return effect is not None
    selects_smallest = is_op(node, "ArgMin") or (is_op(node, "TopK") and attribute(node, "largest", 1) == 0)
    return known.low >= -LARGEST_FLOAT16 if selects_smallest else known.high <= LARGEST_FLOAT16


def _first_of_chain(value: ir.Value, overflows: Collection[ir.Value], writers: Mapping[ir.Value, Unit]) -> ir.Value:
    """The first tensor that overflows, from which float16 operators compute a tensor that overflows as well."""
    earlier: ir.Value | None = value
    while earlier is not None:
        value = earlier
        operands = writers[value].operands if value in writers else ()
        earlier = next((operand.value for operand in operands if operand.value in overflows), None)
    return value


def _overflow(value: ir.Value, known: _Range, unit: Unit, others: int) -> Finding:
    name, writes = origin_of(value).name, value in unit.outputs
    node = unit.nodes[-1] if writes else unit.nodes[0]
    numbers = {"low": known.low, "high": known.high, "others": float(others)}
    what = f"ranges from {known.low:.4g} to {known.high:.4g}"
    producer = value.producer()
    squared = producer.inputs[0] if producer is not None and _is_square(producer) else None
    fix = "change the model so that its values are smaller, or quantize its operators to 16 bits"
    if squared is not None:
        is_of = f"the square of {origin_of(squared).name!r}"
        what = f"is {is_of} and reaches {known.high:.4g}"
        fix = f"multiply {origin_of(squared).name!r} by a constant such as 1/64 before it is squared, or {fix}"
    if writes and is_op(node, "ReduceL2"):
        what = f"is the root of a sum of squares that reaches {known.largest**2:.4g}"
        fix = "multiply its input by a constant such as 1/64, and its output by the inverse"
    verb = "computes" if writes else "reads"
    after = f"; {others} more computed from it" if others else ""
    return Finding(
        "Q511",
        at_tensor(value),
        f"{named(node)} {verb} {name!r} in float16: it {what}, and the largest float16 value is 65504{after}",
        Severity.WARNING,
        numbers,
        fix,
    )
