"""Tensors that are or could be quantized, with their planned qparams and the encodings of the target's table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, DType, Encoding, QParams
from dovetail.model.edit import constant_of, is_float
from dovetail.model.origin import origin_of
from dovetail.numerics.histogram import Histogram
from dovetail.numerics.ranges import params_from_range
from dovetail.plan.constraints import Operand, Problem, Unit
from dovetail.plan.qparams import constant_params
from dovetail.rules.check_input import CheckInput
from dovetail.rules.loss import QuantizationLoss, loss_of_counts, loss_of_range, loss_of_tensor
from dovetail.storage import Choice

# Operators whose small outputs may quantize to zero without harm.
_BOUNDED = frozenset({"HardSigmoid", "Sigmoid", "Softmax"})

# Weights of fewer bits have to be requested.
_USUAL_BITS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Activation:
    """An input or an operator's output with its range and, if calibration collected one, its histogram (``counts``).

    ``kind``: what it is in a message, such as ``Add output``.
    """

    value: ir.Value
    kind: str
    planned: QParams | None
    encodings: tuple[Encoding, ...]
    low: float
    high: float
    counts: Array | None

    def params(self, encoding: Encoding) -> QParams:
        """The qparams of an encoding over the whole range."""
        return params_from_range(self.low, self.high, encoding)

    def loss(self, params: QParams) -> QuantizationLoss:
        """What quantizing with these qparams loses, as far as the values are known."""
        if self.counts is None:
            return loss_of_range(params)
        return loss_of_counts(Histogram(self.counts, self.low, self.high), params)


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A finite, non-empty constant as one of its consumers quantizes it."""

    operand: Operand
    node: ir.Node
    array: Array
    planned: QParams | None
    encodings: tuple[Encoding, ...]
    kind: str = "constant"

    @property
    def value(self) -> ir.Value:
        return self.operand.value

    @property
    def low(self) -> float:
        return float(self.array.min())

    @property
    def high(self) -> float:
        return float(self.array.max())

    def params(self, encoding: Encoding) -> QParams:
        """The qparams that the plan stage would choose for an encoding."""
        return constant_params(self.node, self.operand, encoding, self.array)

    def loss(self, params: QParams) -> QuantizationLoss:
        """What quantizing with these qparams loses."""
        return loss_of_tensor(self.array, params)


def activations(subject: CheckInput) -> Iterator[Activation]:
    """Yield the activations whose range is known from calibration or from their planned qparams, in graph order."""
    for value, op_type, encodings in _own_ranges(subject.problem):
        name = value.name or ""
        planned = None if subject.plan is None else _planned(subject.plan.tensors.get(name))
        if not _is_quantized(subject, planned, encodings):
            continue
        kind = f"{op_type} output" if op_type else "input"
        stats = None if subject.stats is None else subject.stats.tensors.get(name)
        if stats is not None:
            counts = None if op_type in _BOUNDED else stats.counts
            yield Activation(value, kind, planned, encodings, stats.low, stats.high, counts)
        elif planned is not None:
            yield Activation(value, kind, planned, encodings, *representable_range(planned), None)


def constants(subject: CheckInput) -> Iterator[Constant]:
    """Yield every constant once, in the order of their first consumers, except biases, whose scale is derived."""
    plan = subject.plan
    done: set[tuple[str, QParams | None]] = set()
    for unit in subject.problem.units:
        for operand in unit.operands:
            planned = None if plan is None else _planned(plan.edges.get(operand.edge))
            encodings = _slot_encodings(unit, operand)
            key = (operand.name, planned)
            if not operand.constant or key in done or not _is_quantized(subject, planned, encodings):
                continue
            done.add(key)
            array = constant_of(operand.value)
            if array is not None and array.size and np.isfinite(array).all():
                yield Constant(operand, unit.nodes[0], array, planned, encodings)


def encodings_by_name(problem: Problem) -> dict[str, tuple[Encoding, ...]]:
    """The integer encodings that the target's table has for every tensor of the graph, by its original name."""
    found = {origin_of(value).name: encodings for value, _, encodings in _own_ranges(problem)}
    for unit in problem.units:
        for operand in unit.operands:
            if operand.constant:
                found.setdefault(origin_of(operand.value).name, _slot_encodings(unit, operand))
    return found


def _is_quantized(subject: CheckInput, planned: QParams | None, encodings: tuple[Encoding, ...]) -> bool:
    """Whether the plan quantizes the tensor or, without a plan, the target's table has an integer encoding for it."""
    return planned is not None if subject.plan is not None else bool(encodings)


def _own_ranges(problem: Problem) -> Iterator[tuple[ir.Value, str, tuple[Encoding, ...]]]:
    """Tensors that do not take over their input's quantization, with the operator type and the possible encodings.

    A tensor inside a fused chain has no encoding in the table, but another tool may have quantized it.
    """
    for value in problem.inputs:
        yield value, "", _integer(precision.activation for precision in problem.table.precisions.values())
    for unit in problem.units:
        if unit.shared():
            continue
        for node in unit.nodes:
            encodings = _integer(s.output for s in unit.signatures) if node is unit.nodes[-1] else ()
            for value in node.outputs:
                if is_float(value):
                    yield value, node.op_type, encodings


def _slot_encodings(unit: Unit, operand: Operand) -> tuple[Encoding, ...]:
    """The encodings of an operand; narrow weights, which always lose much, are used only where they are requested."""
    slots = [signature.slot(operand.slot) for signature in unit.signatures]
    encodings = _integer(slot.encoding for slot in slots if slot is not None and not slot.derived)
    return tuple(encoding for encoding in encodings if encoding.dtype.bits >= _USUAL_BITS)


def _integer(encodings: Iterable[Encoding]) -> tuple[Encoding, ...]:
    """The integer encodings among these, each once, fewest bits first."""
    unique = dict.fromkeys(e for e in encodings if _has_own_scale(e.dtype))
    return tuple(sorted(unique, key=lambda e: e.dtype.bits))


def _planned(choice: Choice | None) -> QParams | None:
    """The qparams of a choice that quantizes to integers; None otherwise."""
    storage = None if choice is None else choice.storage
    return storage if isinstance(storage, QParams) and _has_own_scale(storage.dtype) else None


def _has_own_scale(dtype: DType) -> bool:
    """Whether it is an integer dtype with a scale of its own; that of int32 is derived from input and weight."""
    return dtype.is_integer and dtype is not DType.S32


def representable_range(params: QParams) -> tuple[float, float]:
    """The smallest and the largest real value that these qparams can represent."""
    grid = params.dtype.grid
    scale = params.scale.astype(np.float64)
    return float(((grid.low - params.zero_point) * scale).min()), float(((grid.high - params.zero_point) * scale).max())
