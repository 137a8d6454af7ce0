"""How wide the second operand of an activation-by-activation MatMul is: chosen per MatMul, by what it costs.

Where a target takes such an operand in 16 bits or in 8, wide is exact and slow, narrow is fast and adds noise. The
noise is measured at the model's outputs with each operand narrow on its own, the time is the vendor's estimate;
operands turn narrow, least noise per time saved first, as many as together cost the outputs no more than ``LOSS_DB``.
Only operands are looked at that are converted for the MatMul in either width.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

from dovetail.backend import Estimate
from dovetail.edge import Edge
from dovetail.encoding import Encoding, QParams
from dovetail.finding import WHOLE_MODEL
from dovetail.model.edit import shape_of
from dovetail.model.place import at_node
from dovetail.plan.make import narrower
from dovetail.plan.request import OperandPin, Pins
from dovetail.storage import Reason
from dovetail.trials.decision import Alternative, Decision
from dovetail.trials.knob import Knob, Outcome
from dovetail.trials.policy import accept_within, least_cost_per_gain
from dovetail.trials.variant import Variant, pinned
from dovetail.trials.workbench import Workbench
from dovetail.verify.switched import SwitchedSimulation

NAME = "operands"
# What all narrow operands together may cost the worst output.
LOSS_DB = 1.0
# Samples for the order of the operands, and for the noise of a set of them: a few say which is worse, not how bad.
RANKING_SAMPLES, SAMPLES = 2, 16
ALL_16_BIT = "all in 16 bit"
RULE = f"8 bit, least noise per time saved first, as many as cost the worst output no more than {LOSS_DB:g} dB together"


def decide(bench: Workbench, variant: Variant) -> Outcome:
    """Pin every such operand to the width that pays, or to the one that was asked for."""
    wish = bench.wishes.get(NAME, "auto")
    narrow = {} if wish == "16" else narrower(variant.model, bench.table, variant.stats, variant.request)
    if wish == "8":
        pins = {edge: OperandPin(encoding, Reason.PINNED, "--operand-bits 8") for edge, encoding in narrow.items()}
        return pinned(Pins(operands=pins))(variant), ()
    if not narrow or not bench.samples(SAMPLES):
        return variant, ()
    search = _Search(bench, variant, narrow)
    return search.outcome()


OPERAND_WIDTHS = Knob(NAME, decide)


class _Search:
    """One search over the operands of a variant that can be narrow."""

    def __init__(self, bench: Workbench, variant: Variant, narrow: Mapping[Edge, Encoding]) -> None:
        self._bench, self._variant, self._narrow = bench, variant, narrow
        self._wide = _converted(bench, variant)
        self._others = {e: p for e, p in _converted(bench, self._with(list(narrow))).items() if e in narrow}
        self._edges = [edge for edge in self._others if edge in self._wide]
        self._nodes = {node.name: node for node in variant.model.graph}
        self._groups = self._alike()

    def outcome(self) -> Outcome:
        """The variant with every operand pinned to what was chosen, and a decision for each and for all together."""
        if not self._edges:
            return self._variant, ()
        noise = self._bench.switched(self._variant, {edge: self._others[edge] for edge in self._edges}, SAMPLES)
        alone = []
        for number in range(len(self._edges)):
            self._bench.progress(number, len(self._edges))
            alone.append(noise.added_noise([number], RANKING_SAMPLES))
        estimates = self._estimates() if self._bench.backend.estimator is not None else {}
        saved_us = self._saved(estimates)
        order = least_cost_per_gain(alone, saved_us or self._work())
        limit = 10 ** (LOSS_DB / 10) - 1
        chosen = accept_within(order, lambda on: noise.added_noise(on) <= limit)
        decisions = [self._decision(number, number in chosen, noise, saved_us) for number in range(len(self._edges))]
        pins = {
            edge: OperandPin(
                self._narrow[edge] if number in chosen else self._wide[edge].encoding,
                Reason.MEASURED,
                f"second operand as {decision.taken}: {decision.reason}",
            )
            for number, (edge, decision) in enumerate(zip(self._edges, decisions, strict=True))
        }
        together = self._together(noise, chosen, estimates)
        return pinned(Pins(operands=pins))(self._variant), (together, *decisions)

    def _with(self, edges: Sequence[Edge]) -> Variant:
        pins = {edge: OperandPin(self._narrow[edge], Reason.MEASURED, "8 bit") for edge in edges}
        return pinned(Pins(operands=pins))(self._variant)

    def _alike(self) -> dict[str, list[int]]:
        """The operands in groups of the same shapes: repeated blocks cost the same."""
        groups: dict[str, list[int]] = {}
        for number, edge in enumerate(self._edges):
            shapes = [shape_of(value) for value in self._nodes[edge.node].inputs]
            groups.setdefault(" x ".join(str(list(shape or ())) for shape in shapes), []).append(number)
        return groups

    def _estimates(self) -> dict[str, Estimate]:
        """The vendor's estimates: all wide, then each group narrow; those that the compiler gives.

        A compiler that does not come to its end is not asked again: it would take the whole time limit every time.
        """
        first = self._bench.build(self._variant).compiled
        if not first.finished or first.estimate is None:
            return {}
        found = {ALL_16_BIT: first.estimate}
        groups, cores = list(self._groups.items()), os.cpu_count() or 1
        for some in (groups[start : start + cores] for start in range(0, len(groups), cores)):
            builds = self._bench.build_each([self._with([self._edges[n] for n in numbers]) for _, numbers in some])
            for (name, _), build in zip(some, builds, strict=True):
                if build.compiled.estimate is not None:
                    found[f"8 bit: {name}"] = build.compiled.estimate
            if not all(build.compiled.finished for build in builds):
                break
        return found

    def _saved(self, estimates: Mapping[str, Estimate]) -> list[float]:
        """What each operand saves in its narrow form, in us; empty where the estimates cannot be compared."""
        wide = estimates.get(ALL_16_BIT)
        saved = [0.0] * len(self._edges)
        for name, numbers in self._groups.items():
            narrow = estimates.get(f"8 bit: {name}")
            if wide is None or narrow is None or narrow.ops_without_cost != wide.ops_without_cost:
                return []
            for number in numbers:
                saved[number] = (wide.mid_us - narrow.mid_us) / len(numbers)
        return saved

    def _work(self) -> list[float]:
        """Multiplications per MatMul: what stands for time where there is no estimate."""
        nodes = [self._nodes[edge.node] for edge in self._edges]
        return [float(math.prod(shape_of(n.outputs[0]) or ()) * (shape_of(n.inputs[0]) or (1,))[-1]) for n in nodes]

    def _decision(self, number: int, is_narrow: bool, noise: SwitchedSimulation, saved_us: Sequence[float]) -> Decision:
        edge = self._edges[number]
        wide, narrow = self._wide[edge].dtype, self._narrow[edge].dtype
        wide_db, narrow_db = (noise.worst_db(on, RANKING_SAMPLES) for on in ((), (number,)))
        loss = (wide_db or 0.0) - (narrow_db or 0.0)
        time = f", {saved_us[number]:.1f} us saved by the vendor's estimate" if saved_us else ""
        taken = str(narrow if is_narrow else wide)
        return Decision(
            knob=NAME,
            place=at_node(self._nodes[edge.node], edge),
            taken=taken,
            alternatives=(
                Alternative(str(wide), _figures(sqnr_db=wide_db)),
                Alternative(str(narrow), _figures(sqnr_db=narrow_db, saved_us=saved_us[number] if saved_us else None)),
            ),
            rule=RULE,
            reason=f"{narrow} alone {_effect(loss)}{time}",
            samples=min(RANKING_SAMPLES, len(self._bench.samples(SAMPLES))),
        )

    def _together(
        self, noise: SwitchedSimulation, chosen: frozenset[int], estimates: Mapping[str, Estimate]
    ) -> Decision:
        """What all of them together do, with the estimates that decided."""
        wide_db, chosen_db = noise.worst_db(()), noise.worst_db(chosen)
        timed = {name: float(estimate.mid_us) for name, estimate in estimates.items()}
        groups = [Alternative(name, {"estimate_us": us}) for name, us in timed.items() if name != ALL_16_BIT]
        taken = f"{len(chosen)} of {len(self._edges)} in 8 bit"
        return Decision(
            knob=NAME,
            place=WHOLE_MODEL,
            taken=taken,
            alternatives=(
                Alternative(ALL_16_BIT, _figures(sqnr_db=wide_db, estimate_us=timed.get(ALL_16_BIT))),
                *groups,
                Alternative(taken, _figures(sqnr_db=chosen_db)),
            ),
            rule=RULE,
            reason=f"what is in 8 bit {_effect((wide_db or 0.0) - (chosen_db or 0.0))}",
            samples=len(self._bench.samples(SAMPLES)),
        )


def _converted(bench: Workbench, variant: Variant) -> dict[Edge, QParams]:
    """What a variant converts to, edge by edge."""
    return {e: c.storage for e, c in bench.plan(variant).edges.items() if isinstance(c.storage, QParams)}


def _effect(loss_db: float) -> str:
    """What becomes of the worst output."""
    return f"costs the worst output {loss_db:.2f} dB" if loss_db >= 0 else f"gains the worst output {-loss_db:.2f} dB"


def _figures(**figures: float | None) -> dict[str, float]:
    return {name: value for name, value in figures.items() if value is not None}
