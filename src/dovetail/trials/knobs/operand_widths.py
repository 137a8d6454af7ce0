"""The bit width of the second operand of an activation-by-activation MatMul, chosen per MatMul by measurement.

Where a target supports such an operand in 16 and in 8 bits, 16 bits are accurate and slow, 8 bits are fast and add
noise. The noise is measured at the model's outputs with only one operand in 8 bits, the time is the vendor's estimate.
Operands are set to 8 bits in order of noise per time saved, as long as all together cost the worst output at most
``LOSS_DB``. Only operands that the plan converts for the MatMul in both widths are considered.
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
# The most that all 8-bit operands together may cost the worst output.
LOSS_DB = 1.0
# Samples for the order of the operands, and for the noise of a set of them: a few suffice to rank, not to measure.
RANKING_SAMPLES, SAMPLES = 2, 16
ALL_16_BIT = "all operands 16-bit"
CRITERION = (
    "8 bits in order of noise per time saved, as long as all 8-bit operands together cost the worst output at most "
    f"{LOSS_DB:g} dB"
)


def decide(workbench: Workbench, variant: Variant) -> Outcome:
    """Pin every such operand to the width chosen by measurement, or to the caller's ``--operand-bits``."""
    wish = workbench.knob_options.get(NAME, "auto")
    narrow = {} if wish == "16" else narrower(variant.model, workbench.table, variant.stats, variant.request)
    if wish == "8":
        pins = {edge: OperandPin(encoding, Reason.PINNED, "--operand-bits 8") for edge, encoding in narrow.items()}
        return pinned(Pins(operands=pins))(variant), ()
    if not narrow or not workbench.samples(SAMPLES):
        return variant, ()
    search = _WidthSearch(workbench, variant, narrow)
    return search.outcome()


OPERAND_WIDTHS = Knob(NAME, decide)


class _WidthSearch:
    """One search over the operands of a variant that can be 8-bit."""

    def __init__(self, workbench: Workbench, variant: Variant, narrow: Mapping[Edge, Encoding]) -> None:
        self._bench, self._variant, self._narrow = workbench, variant, narrow
        self._wide_qparams = _converted(workbench, variant)
        narrow_qparams = _converted(workbench, self._with(list(narrow)))
        self._narrow_qparams = {edge: qparams for edge, qparams in narrow_qparams.items() if edge in narrow}
        self._edges = [edge for edge in self._narrow_qparams if edge in self._wide_qparams]
        self._nodes = {node.name: node for node in variant.model.graph}
        self._groups = self._same_shapes()

    def outcome(self) -> Outcome:
        """The variant with every operand pinned to its chosen width, a decision for all together and one for each."""
        if not self._edges:
            return self._variant, ()
        alternatives = {edge: self._narrow_qparams[edge] for edge in self._edges}
        noise = self._bench.switched(self._variant, alternatives, SAMPLES)
        noise_alone = []
        for index in range(len(self._edges)):
            self._bench.progress(index, len(self._edges))
            noise_alone.append(noise.added_noise([index], RANKING_SAMPLES))
        estimates = self._estimates() if self._bench.backend.estimator is not None else {}
        saved_us = self._saved(estimates)
        order = least_cost_per_gain(noise_alone, saved_us or self._multiplications())
        limit = 10 ** (LOSS_DB / 10) - 1
        chosen = accept_within(order, lambda on: noise.added_noise(on) <= limit)
        decisions = [self._decision(index, index in chosen, noise, saved_us) for index in range(len(self._edges))]
        pins = {
            edge: OperandPin(
                self._narrow[edge] if index in chosen else self._wide_qparams[edge].encoding,
                Reason.MEASURED,
                f"second operand as {decision.taken}: {decision.reason}",
            )
            for index, (edge, decision) in enumerate(zip(self._edges, decisions, strict=True))
        }
        together = self._together(noise, chosen, estimates)
        return pinned(Pins(operands=pins))(self._variant), (together, *decisions)

    def _with(self, edges: Sequence[Edge]) -> Variant:
        pins = {edge: OperandPin(self._narrow[edge], Reason.MEASURED, "8-bit operand") for edge in edges}
        return pinned(Pins(operands=pins))(self._variant)

    def _same_shapes(self) -> dict[str, list[int]]:
        """The operands grouped by the shapes of their MatMul: repeated blocks take the same time."""
        groups: dict[str, list[int]] = {}
        for index, edge in enumerate(self._edges):
            shapes = [shape_of(value) for value in self._nodes[edge.node].inputs]
            groups.setdefault(" x ".join(str(list(shape or ())) for shape in shapes), []).append(index)
        return groups

    def _estimates(self) -> dict[str, Estimate]:
        """The vendor's estimates where the compiler gives one: with all operands 16-bit, then with each group 8-bit.

        After a compilation that did not finish no other is started: it could take the whole time limit again.
        """
        wide = self._bench.build(self._variant).compiled
        if not wide.finished or wide.estimate is None:
            return {}
        estimates = {ALL_16_BIT: wide.estimate}
        groups, cores = list(self._groups.items()), os.cpu_count() or 1
        for batch in (groups[start : start + cores] for start in range(0, len(groups), cores)):
            builds = self._bench.build_each([self._with([self._edges[i] for i in indices]) for _, indices in batch])
            for (shapes, _), build in zip(batch, builds, strict=True):
                if build.compiled.estimate is not None:
                    estimates[_group_label(shapes)] = build.compiled.estimate
            if not all(build.compiled.finished for build in builds):
                break
        return estimates

    def _saved(self, estimates: Mapping[str, Estimate]) -> list[float]:
        """The time that 8 bits save per operand, in us; empty where the estimates cannot be compared."""
        wide = estimates.get(ALL_16_BIT)
        saved = [0.0] * len(self._edges)
        for shapes, indices in self._groups.items():
            narrow = estimates.get(_group_label(shapes))
            if wide is None or narrow is None or narrow.ops_without_cost != wide.ops_without_cost:
                return []
            for index in indices:
                saved[index] = (wide.mid_us - narrow.mid_us) / len(indices)
        return saved

    def _multiplications(self) -> list[float]:
        """Multiplications per MatMul, used instead of the time saved if there is no estimate."""
        nodes = [self._nodes[edge.node] for edge in self._edges]
        return [float(math.prod(shape_of(n.outputs[0]) or ()) * (shape_of(n.inputs[0]) or (1,))[-1]) for n in nodes]

    def _decision(self, index: int, is_narrow: bool, noise: SwitchedSimulation, saved_us: Sequence[float]) -> Decision:
        edge = self._edges[index]
        wide, narrow = self._wide_qparams[edge].dtype, self._narrow[edge].dtype
        wide_db, narrow_db = (noise.worst_db(on, RANKING_SAMPLES) for on in ((), (index,)))
        loss = (wide_db or 0.0) - (narrow_db or 0.0)
        time = f", {saved_us[index]:.1f} us saved by the vendor's estimate" if saved_us else ""
        taken = str(narrow if is_narrow else wide)
        return Decision(
            knob=NAME,
            place=at_node(self._nodes[edge.node], edge),
            taken=taken,
            alternatives=(
                Alternative(str(wide), _figures(sqnr_db=wide_db)),
                Alternative(str(narrow), _figures(sqnr_db=narrow_db, saved_us=saved_us[index] if saved_us else None)),
            ),
            rule=CRITERION,
            reason=f"{narrow} alone {_effect(loss)}{time}",
            samples=min(RANKING_SAMPLES, len(self._bench.samples(SAMPLES))),
        )

    def _together(
        self, noise: SwitchedSimulation, chosen: frozenset[int], estimates: Mapping[str, Estimate]
    ) -> Decision:
        """The decision for all operands together, with the estimates it is based on."""
        wide_db, chosen_db = noise.worst_db(()), noise.worst_db(chosen)
        estimate_us = {label: float(estimate.mid_us) for label, estimate in estimates.items()}
        groups = [Alternative(label, {"estimate_us": us}) for label, us in estimate_us.items() if label != ALL_16_BIT]
        taken = f"{len(chosen)} of {len(self._edges)} operands 8-bit"
        return Decision(
            knob=NAME,
            place=WHOLE_MODEL,
            taken=taken,
            alternatives=(
                Alternative(ALL_16_BIT, _figures(sqnr_db=wide_db, estimate_us=estimate_us.get(ALL_16_BIT))),
                *groups,
                Alternative(taken, _figures(sqnr_db=chosen_db)),
            ),
            rule=CRITERION,
            reason=f"this choice {_effect((wide_db or 0.0) - (chosen_db or 0.0))}",
            samples=len(self._bench.samples(SAMPLES)),
        )


def _converted(workbench: Workbench, variant: Variant) -> dict[Edge, QParams]:
    """The qparams of every edge that a variant's plan converts."""
    return {e: c.storage for e, c in workbench.plan(variant).edges.items() if isinstance(c.storage, QParams)}


def _group_label(shapes: str) -> str:
    return f"8-bit: {shapes}"


def _effect(loss_db: float) -> str:
    """The change of the worst output's SQNR as a text."""
    if loss_db >= 0:
        return f"costs the worst output {loss_db:.2f} dB"
    return f"improves the worst output by {-loss_db:.2f} dB"


def _figures(**figures: float | None) -> dict[str, float]:
    return {name: value for name, value in figures.items() if value is not None}
