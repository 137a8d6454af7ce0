"""Search for a mixed precision: which operators of a quantized plan have a wider precision, or another one.

What quantizing each tensor and each operator's weights alone costs is measured first, at the base precision and at the
other one. That is called wide here: it has more bits, or as many of another kind (int8 in place of float8). A tensor is
wide only if the operators that write it and all that read it are, so these become wide together. Noise adds up, so what
gains most per cost comes first. Only some sets are planned and simulated; what is reported of these is measured, not
predicted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.model.edit import shape_of
from dovetail.model.macs import macs_of
from dovetail.model.ranked import ranked_outputs
from dovetail.op_support import Precision
from dovetail.plan.attention_units import attention_units
from dovetail.plan.constraints import Unit, build_problem
from dovetail.plan.elements import unit_elements
from dovetail.plan.kernels import computing_in, same_kind, usable
from dovetail.plan.mixture import boundaries, float_share, islands, unit_macs
from dovetail.plan.pinned_groups import pinned_otherwise
from dovetail.plan.request import Pin, Pins
from dovetail.storage import Plan, Reason
from dovetail.trials.sensitivity.first_order import estimate
from dovetail.trials.sensitivity.measure import Calls, measure
from dovetail.trials.sensitivity.subjects import Level, Part, Subject
from dovetail.trials.variant import Variant, in_precision, pinned
from dovetail.trials.workbench import Workbench
from dovetail.verify.verdicts import MAX_SQNR_DB

# The fewest and the most samples for the order of the operators, and for judging a set of them: single samples of a
# network can differ by 10 dB, so small networks, which are quick, are judged on many.
_RANKING_SAMPLES, _SAMPLES = (4, 8), (16, 64)
# How many MACs judging one set takes, if that does not mean fewer samples; and how many measuring the order takes,
# before it is estimated to first order instead.
_JUDGED_MACS, _MEASURED_MACS = 10**11, 10**12
# By how much the noise shall fall, as predicted, with each set that is tried.
_STEPS_DB = (1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 13.0, 18.0, 24.0, 31.0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Operators that become wider together, after those of the candidates before.

    ``gain``: the noise at the outputs that goes away, relative to the signal. ``cost``: MACs, and elements written.
    ``inputs``: graph inputs that are wide, too.
    """

    units: tuple[Unit, ...]
    gain: float
    cost: float
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """A variant that was planned and simulated.

    ``wide``: the operators that have a wider precision, in order of gain per cost. ``digest``: the hash of what was
    emitted. ``sqnr_db``: of the worst output, mean over samples; ``pooled_db``: over all samples together.
    ``float_share``: fraction of MACs in float. ``boundaries``: conversions between precisions.
    """

    label: str
    variant: Variant
    plan: Plan
    digest: str
    sqnr_db: float
    pooled_db: float
    float_share: float
    boundaries: int
    wide: tuple[Candidate, ...] = ()
    islands: tuple[tuple[Unit, ...], ...] = ()


def judged_samples(bench: Workbench, model: ir.Model) -> list[Sample]:
    """The samples on which mixtures are compared."""
    return _samples(bench, model, *_SAMPLES)


def ranking_samples(bench: Workbench, model: ir.Model) -> list[Sample]:
    """The samples on which the order of the operators is measured."""
    return _samples(bench, model, *_RANKING_SAMPLES)


def _samples(bench: Workbench, model: ir.Model, fewest: int, most: int) -> list[Sample]:
    macs = max(sum(map(macs_of, model.graph)), 1)
    return bench.samples(min(max(_JUDGED_MACS // macs, fewest), most))


def uniform(bench: Workbench, variant: Variant, label: str = "") -> Mixture:
    """A variant as it is, with one precision for all operators, whose name is the label if there is no other."""
    return _simulated(bench, variant, label or variant.request.precision.name)


@dataclass(frozen=True, slots=True)
class _Move:
    """Noise that goes away if all of these operators, and these graph inputs, are wide."""

    units: frozenset[str]
    gain: float
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """Where noise comes from: the constants and conversions of one operator, or the tensors of one group."""

    unit: str = ""
    tensors: tuple[str, ...] = ()


class MixedSearch:
    """The mixtures of one variant with a wider precision, in the order of what they gain per cost.

    ``label``: of the variant itself, if it is not the name of its precision.
    """

    def __init__(
        self, bench: Workbench, base: Variant, wide: Precision, max_float: float | None, label: str = ""
    ) -> None:
        self._bench, self._base, self._wide = bench, base, wide
        self._label = label or base.request.precision.name
        self._problem = build_problem(base.model, bench.table)
        self._inputs = frozenset(value.name or "" for value in self._problem.inputs)
        self._eligible = self._can_be_wide()
        self._floats = {name for name, unit in self._eligible.items() if _computes_in_float(unit, wide)}
        self.candidates = self._ordered(self._room(max_float))

    def mixtures(self) -> Iterator[Mixture]:
        """Mixtures whose noise falls step by step."""
        total, done = sum(candidate.gain for candidate in self.candidates), set[str]()
        shares = [1 - 10 ** (-step_db / 10) for step_db in _STEPS_DB]
        counts = [_shortest(self.candidates, total * share) for share in shares]
        for count in dict.fromkeys((*counts, len(self.candidates)) if self.candidates else ()):
            mixture = self.mixture(self.candidates[:count])
            if mixture.label not in done:  # the operators in between can be those that come next
                done.add(mixture.label)
                yield mixture

    def mixture(self, chosen: Sequence[Candidate]) -> Mixture:
        """Plan and simulate the base with these operators wider, and those in between."""
        units = self._filled({unit.name for candidate in chosen for unit in candidate.units})
        base = self._base.request.precision.name
        text = f"kept in {self._wide.name}: in {base}, its noise at the outputs is among the largest"
        pin = Pin(self._wide, Reason.MEASURED, text)
        inputs = [name for candidate in chosen for name in candidate.inputs]
        variant = pinned(Pins(dict.fromkeys(units, pin), dict.fromkeys(inputs, pin)))(self._base)
        parts = tuple(map(tuple, islands(self._problem, units)))
        label = f"{self._label} + {len(units)} in {self._wide.name}"
        return _simulated(self._bench, variant, label, tuple(chosen), parts)

    def _can_be_wide(self) -> dict[str, Unit]:
        """The operators that may become wider: the target has a kernel, and the caller has not fixed them."""
        pins = self._base.request.pins
        fixed = pinned_otherwise(self._problem, pins, self._wide)
        return {
            unit.name: unit
            for unit in self._problem.units
            if unit.name not in fixed
            and unit.name not in pins.units
            and not unit.shared()
            and computing_in(unit, usable(unit), self._wide)
        }

    def _ordered(self, room: float) -> list[Candidate]:
        """What becomes wide, most gain per cost first, each on top of those before; with at most ``room`` MACs."""
        moves = [move for move in self._moves() if move.gain > 0]
        chosen, ordered = frozenset[str](), list[Candidate]()
        while affordable := [move for move in moves if self._float_macs(move.units | chosen) <= room]:
            best = max(affordable, key=lambda move: move.gain / self._cost(move.units - chosen))
            added = best.units - chosen
            chosen |= best.units
            done = [move for move in moves if move.units <= chosen]
            moves = [move for move in moves if not move.units <= chosen]
            units = tuple(unit for unit in self._problem.units if unit.name in added)
            inputs = tuple(name for move in done for name in move.inputs)
            ordered.append(Candidate(units, sum(move.gain for move in done), self._cost(added), inputs))
        return ordered

    def _moves(self) -> list[_Move]:
        """Everything whose noise can go away, with the operators that must be wide for it."""
        narrow = self._noise(self._base)
        wide = {} if _is_float(self._wide) else self._noise(in_precision(self._wide)(self._base))
        together = self._attention()
        moves = []
        for source, noise in narrow.items():
            units = self._needed(source)
            whole = frozenset().union(*(together.get(name, frozenset((name,))) for name in units))
            if units and whole <= self._eligible.keys():
                inputs = tuple(name for name in source.tensors if name in self._inputs)
                moves.append(_Move(whole, max(noise - wide.get(source, 0.0), 0.0), inputs))
        return moves

    def _needed(self, source: _Source) -> frozenset[str]:
        """The operators that must be wide: one for its weights, all that write or read the tensors of a group."""
        if source.unit:
            return frozenset((source.unit,))
        writers = [self._problem.producer[name] for name in source.tensors if name in self._problem.producer]
        around = (*writers, *self._problem.readers_of(source.tensors))
        return frozenset(unit.name for unit in around if not unit.shared())

    def _attention(self) -> dict[str, frozenset[str]]:
        """Operator -> those of the same attention block: targets fuse them, so they have one precision.

        Where a target keeps attention in 8 bits, the block can never become wide.
        """
        blocks = attention_units(self._problem.units)
        if not self._bench.table.keeps_attention:
            return blocks
        return {name: block | {f"{name}: quantized"} for name, block in blocks.items()}  # no operator has this name

    def _float_macs(self, names: Collection[str]) -> int:
        """The MACs that these operators compute in float if they are wide."""
        return sum(unit_macs(self._eligible[name]) for name in names if name in self._floats)

    def _cost(self, names: Collection[str]) -> float:
        units = [self._eligible[name] for name in names]
        elements = sum(math.prod(shape_of(value) or ()) for unit in units for value in unit.outputs)
        return float(sum(map(unit_macs, units)) + elements) or 1.0

    def _room(self, max_float: float | None) -> float:
        """How many MACs may still become float."""
        if max_float is None:
            return math.inf
        total = sum(map(unit_macs, self._problem.units))
        return (max_float - float_share(self._problem, self._bench.plan(self._base))) * total

    def _noise(self, variant: Variant) -> dict[_Source, float]:
        """The noise at the worst output, relative to the signal, if only this source of it is quantized."""
        plan = self._bench.plan(variant)
        parts = unit_elements(self._problem, plan)
        quantized = {_Source(tensors=tensors): frozenset((number,)) for number, tensors in parts.groups.items()}
        quantized |= {_Source(unit): numbers for unit, numbers in parts.edges.items() if numbers}
        subjects = [Subject(Level.OPERATOR, Part.BOTH, str(key), "", numbers) for key, numbers in quantized.items()]
        samples = ranking_samples(self._bench, self._base.model)
        calls = Calls(lambda: samples, len(samples), ranked=ranked_outputs(variant.model.graph))
        macs = sum(map(unit_macs, self._problem.units)) * len(subjects) * len(samples) // 2
        find, how = (estimate, "estimated") if macs > _MEASURED_MACS else (measure, "measured")

        def measured() -> dict[str, float]:
            costs = find(self._bench.segmented(variant.model, plan, parts.elements), calls, subjects)
            return {str(number): cost.mean_db for number, cost in enumerate(costs)}

        names = [str(number) for number in range(len(subjects))]
        figures = self._bench.cached_values(variant, f"noise {how} on {len(samples)}", measured, names)
        return {key: 10 ** (-figures[str(number)] / 10) for number, key in enumerate(quantized)}

    def _filled(self, names: set[str]) -> list[str]:
        """These operators, and those without MACs that lie only between them: each saves two conversions."""
        chosen = set(names)
        for unit in self._problem.units:
            if unit.name in self._eligible and unit.name not in chosen and not unit_macs(unit):
                around = self._around(unit)
                if around and around <= chosen:
                    chosen.add(unit.name)
        return [unit.name for unit in self._problem.units if unit.name in chosen]

    def _around(self, unit: Unit) -> set[str]:
        """The operators that write what a unit reads, and that read what it writes, after data movement."""
        before = {name for operand in unit.operands if not operand.constant for name in self._writers(operand.name)}
        readers = self._problem.readers_of(
            name for value in unit.outputs for name in self._problem.groups[self._problem.group_of[value.name or ""]]
        )
        return before | {reader.name for reader in readers if not reader.shared()}

    def _writers(self, name: str) -> list[str]:
        root = self._problem.group_of[name]
        writers = [unit.name for unit in self._problem.writers_of(root) if not unit.shared()]
        return writers or [""]  # a graph input: never wide


def _simulated(
    bench: Workbench,
    variant: Variant,
    label: str,
    wide: tuple[Candidate, ...] = (),
    parts: tuple[tuple[Unit, ...], ...] = (),
) -> Mixture:
    plan, problem = bench.plan(variant), build_problem(variant.model, bench.table)
    sqnr = bench.simulated_sqnr(variant, len(judged_samples(bench, variant.model)))
    share = float_share(problem, plan)
    # The simulation computes in float32 what some targets compute in float16.
    limit_db = MAX_SQNR_DB if bench.backend.float16_db is None or not share else bench.backend.float16_db
    return Mixture(
        label,
        variant,
        plan,
        sqnr.digest,
        min(sqnr.mean_db, limit_db),
        min(sqnr.pooled_db, limit_db),
        share,
        boundaries(problem, plan),
        wide,
        parts,
    )


def may_lose_less(precision: Precision, other: Precision) -> bool:
    """Whether some operators may lose less in the other precision: it has more bits, or as many of another kind.

    Float8 keeps small values beside large ones, integers keep more digits.
    """
    pairs = list(zip(_bits(precision), _bits(other), strict=True))
    if any(a > b for a, b in pairs):
        return False
    return any(a < b for a, b in pairs) or not same_kind(precision.activation, other.activation)


def _bits(precision: Precision) -> list[float]:
    types = [encoding.dtype for encoding in (precision.activation, precision.weight)]
    return [dtype.bits if dtype.is_quantized else math.inf for dtype in types]


def _is_float(precision: Precision) -> bool:
    return not precision.activation.dtype.is_quantized and not precision.weight.dtype.is_quantized


def _computes_in_float(unit: Unit, precision: Precision) -> bool:
    """Whether an operator has no quantized input in this precision: with dynamic quantization, a Conv has none."""
    slots = [slot for signature in computing_in(unit, usable(unit), precision)[:1] for slot in signature.inputs]
    return not any(slot.encoding.dtype.is_quantized for slot in slots)


def _shortest(candidates: Sequence[Candidate], gain: float) -> int:
    """How many of the first candidates together gain this much."""
    total = 0.0
    for count, candidate in enumerate(candidates, start=1):
        total += candidate.gain
        if total >= gain:
            return count
    return len(candidates)
