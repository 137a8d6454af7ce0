"""Tensors that are, or could be, stored as integers, and the grids for them: the planned one, those of the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, DType, Encoding, QParams
from dovetail.model.edit import constant_of, is_float
from dovetail.numerics.histogram import Histogram
from dovetail.numerics.ranges import params_from_range
from dovetail.plan.constraints import Operand, Problem, Unit, build_problem
from dovetail.plan.qparams import constant_params
from dovetail.rules.check_input import CheckInput
from dovetail.rules.loss import QuantizationLoss, loss_of_counts, loss_of_range, loss_of_tensor
from dovetail.storage import Choice

# Their small results are meant to vanish next to the large ones.
_BOUNDED = frozenset({"HardSigmoid", "Sigmoid", "Softmax"})


@dataclass(frozen=True, slots=True, eq=False)
class Activation:
    """An input or a result with bytes of its own, over its range; ``counts`` where calibration counted its values."""

    value: ir.Value
    what: str
    planned: QParams | None
    encodings: tuple[Encoding, ...]
    low: float
    high: float
    counts: Array | None

    def params(self, encoding: Encoding) -> QParams:
        """An encoding with the numbers for the whole range."""
        return params_from_range(self.low, self.high, encoding)

    def loss(self, params: QParams) -> QuantizationLoss:
        """What a grid does to the values, as far as they are known."""
        if self.counts is None:
            return loss_of_range(params)
        return loss_of_counts(Histogram(self.counts, self.low, self.high), params)


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A finite constant, not empty, as one reader has it stored."""

    operand: Operand
    node: ir.Node
    array: Array
    planned: QParams | None
    encodings: tuple[Encoding, ...]
    what: str = "constant"

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
        """An encoding with the numbers that the plan stage would choose."""
        return constant_params(self.node, self.operand, encoding, self.array)

    def loss(self, params: QParams) -> QuantizationLoss:
        """What a grid does to the values."""
        return loss_of_tensor(self.array, params)


def activations(subject: CheckInput) -> Iterator[Activation]:
    """Those whose range is known from calibration or from their planned numbers, in graph order."""
    problem = build_problem(subject.model, subject.table)
    for value, op_type, encodings in _made(problem):
        name = value.name or ""
        planned = None if subject.plan is None else _planned(subject.plan.tensors.get(name))
        if not _is_stored(subject, planned, encodings):
            continue
        what = f"{op_type} output" if op_type else "input"
        seen = None if subject.stats is None else subject.stats.tensors.get(name)
        if seen is not None:
            counts = None if op_type in _BOUNDED else seen.counts
            yield Activation(value, what, planned, encodings, seen.low, seen.high, counts)
        elif planned is not None:
            yield Activation(value, what, planned, encodings, *_reach(planned), None)


def constants(subject: CheckInput) -> Iterator[Constant]:
    """Once each, in the order of their first readers; not biases, whose scale is not their own."""
    plan = subject.plan
    done: set[tuple[str, QParams | None]] = set()
    for unit in build_problem(subject.model, subject.table).units:
        for operand in unit.operands:
            planned = None if plan is None else _planned(plan.edges.get(operand.edge))
            encodings = _slot_encodings(unit, operand)
            key = (operand.name, planned)
            if not operand.constant or key in done or not _is_stored(subject, planned, encodings):
                continue
            done.add(key)
            array = constant_of(operand.value)
            if array is not None and array.size and np.isfinite(array).all():
                yield Constant(operand, unit.nodes[0], array, planned, encodings)


def _is_stored(subject: CheckInput, planned: QParams | None, encodings: tuple[Encoding, ...]) -> bool:
    """Whether the plan has integers there or, without a plan, the target's table could."""
    return planned is not None if subject.plan is not None else bool(encodings)


def _made(problem: Problem) -> Iterator[tuple[ir.Value, str, tuple[Encoding, ...]]]:
    """Values whose bytes do not come from others, the operators that make them, and the grids they can have.

    The table has none for what is inside a chain, but another tool may have stored it.
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
    slots = [signature.slot(operand.slot) for signature in unit.signatures]
    return _integer(slot.encoding for slot in slots if slot is not None and not slot.derived)


def _integer(encodings: Iterable[Encoding]) -> tuple[Encoding, ...]:
    """The integer grids among the encodings, once each, the coarsest first."""
    found = dict.fromkeys(e for e in encodings if _is_grid(e.dtype))
    return tuple(sorted(found, key=lambda e: e.dtype.bits))


def _planned(choice: Choice | None) -> QParams | None:
    """The numbers of a choice that is an integer grid."""
    storage = None if choice is None else choice.storage
    return storage if isinstance(storage, QParams) and _is_grid(storage.dtype) else None


def _is_grid(dtype: DType) -> bool:
    """Whether it is an integer dtype whose scale is free; that of int32 follows from others."""
    return dtype.is_integer and dtype is not DType.S32


def _reach(params: QParams) -> tuple[float, float]:
    """The smallest and largest real value that a grid can hold."""
    grid = params.dtype.grid
    scale = params.scale.astype(np.float64)
    return float(((grid.low - params.zero_point) * scale).min()), float(((grid.high - params.zero_point) * scale).max())
