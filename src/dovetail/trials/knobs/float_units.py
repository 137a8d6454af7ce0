"""Which operators of a repaired model stay in float, so that it is not worse than the model as given.

The target's types or additional Q/DQ pairs can cost more than the model as given loses itself. Then operators are kept
in float, those first that gain most by it, and as few as are enough. What one of them gains is measured at the model's
outputs with only this one in float. Neighbors are tried together where there are many operators, so that the number of
trials is bounded. If the target rejects or miscomputes the model with them, the next wider precision takes the place of
float.

What is enough in simulation need not be on the target, whose kernels round elsewhere: one that fuses Sigmoid and Mul
does not round the tensor in between. Then every operator is right to one step, and yet YOLOv8n in symmetric int8 is at
32.1 dB in simulation and at 30.2 dB on that target. So the target's own outputs are judged too where it runs on this
machine, and more operators are kept in float until they pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from operator import not_

import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.encoding import QParams
from dovetail.errors import BackendError
from dovetail.finding import WHOLE_MODEL, Status, Thresholds, Verdict
from dovetail.model.edit import shape_of
from dovetail.model.place import at_node
from dovetail.op_support import Precision
from dovetail.plan.attention_units import attention_units
from dovetail.plan.constraints import Unit, build_problem
from dovetail.plan.kernels import computing_in, usable
from dovetail.plan.pinned_groups import pinned_otherwise
from dovetail.plan.request import Pin, Pins
from dovetail.qdq.quantized_io import RunSamples
from dovetail.storage import Choice, Plan, Reason, ScaleSource
from dovetail.trials.agreement_db import mean_db, worst_db
from dovetail.trials.decision import Alternative, Decision
from dovetail.trials.knob import Knob, Outcome
from dovetail.trials.policy import longer_prefix, shortest_prefix
from dovetail.trials.variant import Variant, pinned
from dovetail.trials.workbench import Workbench
from dovetail.verify import verdicts
from dovetail.verify.low_accuracy import wider_precisions
from dovetail.verify.repaired import REPAIRED, TARGET, Margin, with_target

NAME = "floats"
# How many sets of neighboring operators are ranked, and on how many samples: of a small model on more, because single
# samples can differ by several dB.
MOST_TRIALS, LEAST_SAMPLES, MOST_SAMPLES = 64, 2, 16
# How many elements of activations are computed for one of them, at most, unless the fewest samples have more.
ELEMENTS = 1 << 25
# On how many times as many samples a set of them is judged.
JUDGED = 8
# The most that the outputs of the target may be below the simulation, as for `numerics`; better need not be told apart.
TARGET_DROP_DB, TARGET_CEILING_DB = 3.0, 48.0
CRITERION = (
    "the fewest operators in float, those that gain most first, with which `repaired` passes in simulation and on the "
    "target, if it runs here"
)
QUANTIZED = "quantized"


@dataclass(frozen=True, slots=True)
class _Margins:
    """How clearly a variant must pass in simulation and on the target."""

    simulated: Margin
    on_target: Margin


# Trials are judged on few samples, which are not held out. A search takes the first set that passes, of up to ten: with
# two standard errors, one of them can pass by chance in one search of five. An emulator runs too few samples for
# standard errors: 16 samples of a ViT have one of 1.2 dB.
AS_PLANNED = _Margins(Margin(0.5, errors=2), Margin(1.0))
SEARCHED = _Margins(Margin(0.5, errors=3), Margin(0.5))
# Judges a variant: its float graph, its plan, its simulation or the target, on these samples, with a margin.
Judge = Callable[[ir.Model, Plan, RunSamples, list[Sample], Margin], Verdict]


def float_units(judge: Judge) -> Knob:
    """The knob for variants that this function judges."""
    return Knob(NAME, partial(_decide, judge))


def _decide(judge: Judge, workbench: Workbench, variant: Variant) -> Outcome:
    """Search in float, then in the next wider precision, until the verdict passes."""
    simulated = _judged(judge, workbench, variant, AS_PLANNED.simulated)
    as_planned = _judged_on_target(judge, workbench, variant, simulated, AS_PLANNED.on_target)
    decisions: tuple[Decision, ...] = ()
    if as_planned.status is Status.FAIL:
        for name in wider_precisions(workbench.table, variant.request.precision):
            search = _WiderSearch(judge, workbench, variant, workbench.table.precisions[name])
            chosen, made = search.outcome(as_planned, passes_simulated=simulated.status is Status.PASS)
            decisions += made
            if chosen is not variant:
                return chosen, decisions
    return variant, decisions


def _judged(judge: Judge, workbench: Workbench, variant: Variant, margin: Margin) -> Verdict:
    plan, run = workbench.simulation(variant)
    return judge(variant.model, plan, run, _samples(workbench, variant), margin)


def _judged_on_target(
    judge: Judge, workbench: Workbench, variant: Variant, simulated: Verdict, margin: Margin
) -> Verdict:
    """The verdict of the simulation; where that passes and the target runs here, with what the target computes.

    An emulator runs as many samples as it does before a failure is accepted: one alone can pass by chance.
    """
    if simulated.status is not Status.PASS or (run := workbench.on_target(variant)) is None:
        return simulated
    runner, samples = workbench.backend.runner, _samples(workbench, variant)
    if runner.samples is not None:
        samples = samples[: runner.retry_samples or runner.samples]
    verdict = judge(variant.model, workbench.plan(variant), run, samples, margin)
    return simulated if verdict.status is Status.NOT_CHECKED else with_target(simulated, verdict, len(samples))


def _samples(workbench: Workbench, variant: Variant) -> list[Sample]:
    """The samples on which variants are judged."""
    return workbench.samples(JUDGED * _ranking_samples(variant.model))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Neighboring operators that are kept in float together, and the SQNR of the worst output with only them."""

    units: tuple[Unit, ...]
    sqnr_db: float


class _WiderSearch:
    """One search over the operators of a variant whose quantization is not that of the model as given."""

    def __init__(self, judge: Judge, workbench: Workbench, variant: Variant, precision: Precision) -> None:
        self._judge, self._bench, self._variant, self._precision = judge, workbench, variant, precision
        self._ranking_samples = _ranking_samples(variant.model)
        self._plan = workbench.plan(variant)
        self._quantized_db = self._mean_db(variant)
        self._tried: dict[int, Verdict] = {}

    def outcome(self, as_planned: Verdict, *, passes_simulated: bool) -> Outcome:
        """The variant with the chosen operators in float, a decision for all together and one for each of them.

        Those whose scales are not the given ones are the first suspects if the simulation fails. If they are not
        enough, or if only the target fails, all others follow.
        """
        self._tried[0] = as_planned
        blocks = self._blocks()
        is_suspect = [not passes_simulated and any(_differs(self._plan, unit) for unit in block) for block in blocks]
        order = self._ranked(list(compress(blocks, is_suspect)))
        enough = None if passes_simulated or not order else shortest_prefix(order, self._passes_simulated)
        chosen: Sequence[_Candidate] | None = tuple(order) if enough is None else enough
        if enough is None or not self._passes(enough):
            too_short = len(order) if enough is None else len(enough)
            order += self._ranked(list(compress(blocks, map(not_, is_suspect))))
            chosen = longer_prefix(order, self._passes, too_short)
        if not order:
            return self._variant, ()
        total = _count(order)
        if chosen is None:
            why_not = f"all {total} of them in {self._precision.name} do not help enough"
            return self._variant, (self._together(0, total, why_not),)
        if rejection := self._rejection(self._with(chosen)):
            why_not = f"{_count(chosen)} of them in {self._precision.name} fail on the target: {rejection}"
            return self._variant, (self._together(0, total, why_not),)
        decisions = [self._decision(unit, candidate) for candidate in chosen for unit in candidate.units]
        return self._with(chosen), (self._together(_count(chosen), total), *decisions)

    def _blocks(self) -> list[tuple[Unit, ...]]:
        """The quantized operators that can be kept in float, in the blocks in which they are."""
        problem = build_problem(self._variant.model, self._bench.table)
        fixed = pinned_otherwise(problem, self._variant.request.pins, self._precision)
        units = [unit for unit in problem.units if unit.name not in fixed and self._can_be_float(unit)]
        return [block for block in _blocks(units) if any(_is_quantized(self._plan, unit) for unit in block)]

    def _ranked(self, blocks: Sequence[tuple[Unit, ...]]) -> list[_Candidate]:
        """Neighbors together where there are many, those first that gain most for every operator."""
        size = -(-len(blocks) // MOST_TRIALS) or 1
        joined = [sum(blocks[start : start + size], ()) for start in range(0, len(blocks), size)]
        candidates = []
        for index, units in enumerate(joined):
            self._bench.progress(index, len(joined))
            candidates.append(_Candidate(units, self._mean_db(self._with_units(units))))
        return sorted(candidates, key=self._gain_per_unit, reverse=True)

    def _mean_db(self, variant: Variant) -> float:
        """The SQNR against the float graph, mean over samples, of the worst output."""
        return mean_db(self._bench.compare(variant, self._ranking_samples))

    def _can_be_float(self, unit: Unit) -> bool:
        """Whether the target can run it in float, and nothing else has fixed its precision."""
        free = unit.name not in self._variant.request.pins.units and not unit.shared()
        return free and bool(computing_in(unit, usable(unit), self._precision))

    def _gain_per_unit(self, candidate: _Candidate) -> float:
        return (candidate.sqnr_db - self._quantized_db) / len(candidate.units)

    def _with(self, candidates: Iterable[_Candidate]) -> Variant:
        return self._with_units([unit for candidate in candidates for unit in candidate.units])

    def _with_units(self, units: Sequence[Unit]) -> Variant:
        text = f"kept in {self._precision.name}: with it quantized, the model is worse than the model as given"
        pin = Pin(self._precision, Reason.MEASURED, text)
        return pinned(Pins({unit.name: pin for unit in units}))(self._variant)

    def _passes_simulated(self, candidates: Sequence[_Candidate]) -> bool:
        verdict = _judged(self._judge, self._bench, self._with(candidates), SEARCHED.simulated)
        self._tried[_count(candidates)] = verdict
        return verdict.status is Status.PASS  # a variant that cannot be run is no improvement

    def _passes(self, candidates: Sequence[_Candidate]) -> bool:
        """Whether the verdict passes in simulation and on the target."""
        count = _count(candidates)
        if count not in self._tried:
            self._passes_simulated(candidates)
        variant, simulated = self._with(candidates), self._tried[count]
        verdict = _judged_on_target(self._judge, self._bench, variant, simulated, SEARCHED.on_target)
        self._tried[count] = verdict
        return verdict.status is Status.PASS

    def _decision(self, unit: Unit, candidate: _Candidate) -> Decision:
        others = len(candidate.units) - 1
        together = f" together with {others} neighbors" if others else " alone"
        return Decision(
            knob=NAME,
            place=at_node(unit.nodes[0]),
            taken=self._precision.name,
            alternatives=(
                Alternative(QUANTIZED, {"sqnr_db": self._quantized_db}),
                Alternative(self._precision.name, {"sqnr_db": candidate.sqnr_db}),
            ),
            rule=CRITERION,
            reason=f"this{together} gains the worst output {candidate.sqnr_db - self._quantized_db:.2f} dB",
            samples=len(self._bench.samples(self._ranking_samples)),
        )

    def _rejection(self, variant: Variant) -> str:
        """Why a variant is no use on the target, if the one without operators in float is."""
        for why_not in (self._not_built, self._wrong_on_target) if self._bench.available else ():
            if (reason := why_not(variant)) and not why_not(self._variant):
                return reason
        return ""

    def _not_built(self, variant: Variant) -> str:
        """Why the target does not compile a variant as planned; empty if it does."""
        build = self._bench.build(variant)
        if build.compiled.error:
            return build.compiled.error
        fidelity = verdicts.fidelity(self._bench.backend.read_back(build.compiled, build.plan), Thresholds())
        return fidelity.reason if fidelity.status is Status.FAIL else ""

    def _wrong_on_target(self, variant: Variant) -> str:
        """How the target and the simulation disagree; empty if they agree, or if the target does not run here.

        An emulator runs one sample, and more only if that one disagrees.
        """
        runner, build, reason = self._bench.backend.runner, self._bench.build(variant), ""
        counts = [LEAST_SAMPLES] if runner.samples is None else [runner.samples, runner.retry_samples or runner.samples]
        for count in counts if runner.run is not None and not build.compiled.error else ():
            try:
                target_db = worst_db(self._bench.run(build, variant, count))
            except BackendError as error:
                return str(error)
            simulated_db = self._bench.worst_db(variant, count)
            if target_db >= min(simulated_db, TARGET_CEILING_DB) - TARGET_DROP_DB:
                return ""
            reason = f"target {target_db:.1f} dB, simulation {simulated_db:.1f} dB against float"
        return reason

    def _together(self, taken: int, total: int, why_not: str = "") -> Decision:
        """The decision for all operators together: how many of them in float were tried, and what that gave."""
        name = self._precision.name
        rows = [
            Alternative(_label(count, total, name), _figures(verdict), _failure(verdict))
            for count, verdict in sorted(self._tried.items())
        ]
        return Decision(
            knob=NAME,
            place=WHOLE_MODEL,
            taken=_label(taken, total, name),
            alternatives=tuple(rows),
            rule=CRITERION,
            reason="; ".join(text for text in (self._tried[0].reason, why_not) if text),
            samples=len(_samples(self._bench, self._variant)),
        )


def _ranking_samples(model: ir.Model) -> int:
    elements = sum(math.prod(shape_of(value) or ()) for node in model.graph for value in node.outputs)
    return min(max(ELEMENTS // max(elements, 1), LEAST_SAMPLES), MOST_SAMPLES)


def _count(candidates: Iterable[_Candidate]) -> int:
    return sum(len(candidate.units) for candidate in candidates)


def _label(count: int, total: int, name: str) -> str:
    return f"{count} of {total} operators in {name}"


def _failure(verdict: Verdict) -> str:
    return verdict.reason if verdict.status is Status.FAIL else ""


def _figures(verdict: Verdict) -> dict[str, float]:
    """The figures of the worst output, of those that the verdict compares."""
    figures = {}
    for name, prefix in (("sqnr_db", REPAIRED), ("target_sqnr_db", TARGET)):
        if values := [value for key, value in verdict.numbers.items() if key.startswith(prefix)]:
            figures[name] = min(values)
    return figures


def _blocks(units: Sequence[Unit]) -> list[tuple[Unit, ...]]:
    """The operators that are kept in float together: those of one attention, which targets fuse, and single ones."""
    attention = attention_units(units)
    blocks: dict[frozenset[str], tuple[Unit, ...]] = {}
    for unit in units:
        names = attention.get(unit.name, frozenset((unit.name,)))
        blocks[names] = (*blocks.get(names, ()), unit)
    return list(blocks.values())


def _is_quantized(plan: Plan, unit: Unit) -> bool:
    """Whether a unit reads or writes a quantized tensor."""
    choices = [plan.tensors.get(value.name or "") for value in unit.outputs]
    choices += [plan.edges.get(operand.edge, plan.tensors.get(operand.name)) for operand in unit.operands]
    return any(choice is not None and isinstance(choice.storage, QParams) for choice in choices)


def _differs(plan: Plan, unit: Unit) -> bool:
    """Whether a quantized input or output of a unit has a scale that is not the one of the model as given."""
    choices = [plan.tensors.get(value.name or "") for value in unit.outputs]
    choices += [plan.edges.get(operand.edge) for operand in unit.operands]
    return any(choice is not None and _is_other(choice) for choice in choices)


def _is_other(choice: Choice) -> bool:
    own = choice.scale_from not in (ScaleSource.GIVEN, ScaleSource.DERIVED)
    return own and isinstance(choice.storage, QParams)
