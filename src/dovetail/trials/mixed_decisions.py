"""What a search for a mixed precision tried, and its decisions: for the whole model, and for every island."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.finding import WHOLE_MODEL
from dovetail.model.place import at_node
from dovetail.trials.decision import Alternative, Decision
from dovetail.trials.goal import MARGIN_DB, Goal
from dovetail.trials.latency import Latency
from dovetail.trials.mixed import Mixture, judged_samples, ranking_samples
from dovetail.trials.workbench import Workbench

NAME = "mixed"


@dataclass(frozen=True, slots=True, eq=False)
class MixedTrial:
    """A mixture, and what is known of it beyond the simulation.

    ``family``: the names of the base and of the wide precision. ``base_db``: SQNR of the base alone. ``decisions``: of
    the other knobs, for the base. ``drops``: by how much each value of the metric gets worse, if it was computed.
    ``latency``: if it was built. ``failure``: why it is unusable.
    """

    mixture: Mixture
    family: tuple[str, str]
    base_db: float
    decisions: tuple[Decision, ...] = ()
    drops: Mapping[str, float] | None = None
    latency: Latency | None = None
    failure: str = ""

    @property
    def size(self) -> tuple[float, int, int]:
        """What it costs where the latency is not known: MACs in float, then boundaries, then wide operators."""
        return self.mixture.float_share, self.mixture.boundaries, len(self.mixture.wide)

    @property
    def lowest_db(self) -> float:
        """The SQNR that a limit of the caller applies to."""
        return min(self.mixture.sqnr_db, self.mixture.pooled_db)

    def excess_drop(self, goal: Goal) -> float:
        """By how much more than allowed the metric drops, of all its values the most; infinite if it is not known."""
        if self.drops is None:
            return math.inf
        excess = [drop - goal.drop_of(name) for name, drop in self.drops.items()]
        return max((math.inf if math.isnan(more) else more for more in excess), default=-math.inf)

    def missing_db(self, goal: Goal) -> float:
        """By how much the SQNR is below the limit, with its margin."""
        return -math.inf if goal.min_sqnr_db is None else goal.min_sqnr_db + MARGIN_DB - self.lowest_db

    def meets_accuracy(self, goal: Goal) -> bool:
        """Whether it is as good as the caller asks for."""
        return self.missing_db(goal) <= 0 and (not goal.limits_metric or self.excess_drop(goal) <= 0)

    def is_within_budget(self, goal: Goal) -> bool:
        """Whether it is within the caller's budget, as far as that is known."""
        if goal.max_float is not None and self.mixture.float_share > goal.max_float:
            return False
        if goal.max_latency is None or self.latency is None or self.latency.ratio is None:
            return True
        return self.latency.ratio <= goal.max_latency

    def missed_by(self, goal: Goal) -> str:
        """Every limit that it does not keep, and how close it is."""
        texts = []
        if self.missing_db(goal) > 0:
            needed_db = (goal.min_sqnr_db or 0.0) + MARGIN_DB
            texts.append(f"{self.lowest_db:.1f} dB, and {needed_db:g} dB are needed, {MARGIN_DB:g} dB above the limit")
        for name, drop in (self.drops or {}).items():
            if not drop <= goal.drop_of(name):
                texts.append(f"{name} drops by {drop:.4g}, and at most by {goal.drop_of(name):g} is allowed")
        if goal.max_float is not None and self.mixture.float_share > goal.max_float:
            texts.append(f"{self.mixture.float_share:.1%} of MACs in float, at most {goal.max_float:.1%} allowed")
        if goal.max_latency is not None and self.latency is not None and not self.is_within_budget(goal):
            texts.append(f"latency {self.latency.ratio:.3g} of the baseline, at most {goal.max_latency:g} allowed")
        return "; ".join(texts) or str(goal)


def whole_decision(
    workbench: Workbench, chosen: MixedTrial, trials: Sequence[MixedTrial], *, is_met: bool, no_latency: str = ""
) -> Decision:
    """The decision for the whole model, with all that was tried: accuracy against cost.

    ``no_latency``: why the latencies of what was built are not known.
    """
    unknown = f"; plans were compared by MACs in float, because their latency is not known: {no_latency}"
    caveat = unknown if no_latency else ""
    if not workbench.available:
        caveat = "; none was compiled, because the target's compiler is not available"
    return Decision(
        knob=NAME,
        place=WHOLE_MODEL,
        taken=chosen.mixture.label,
        alternatives=tuple(Alternative(trial.mixture.label, _figures(trial), trial.failure) for trial in trials),
        rule=f"{_criterion(workbench.goal)}: {workbench.goal}",
        reason=_reason(chosen, trials, workbench.goal, is_met) + caveat,
        samples=len(judged_samples(workbench, chosen.mixture.variant.model)),
    )


def _criterion(goal: Goal) -> str:
    if goal.limits_cost and not goal.limits_accuracy:
        return "the best within the budget"
    return "the cheapest that is good enough"


def _figures(trial: MixedTrial) -> dict[str, float]:
    mixture = trial.mixture
    figures = {
        "sqnr_db": mixture.sqnr_db,
        "float_macs_percent": 100 * mixture.float_share,
        "boundaries": float(mixture.boundaries),
        **{f"drop of {name}": drop for name, drop in (trial.drops or {}).items()},
    }
    if trial.latency is not None:
        figures["latency_us" if trial.latency.measured else "estimate_us"] = trial.latency.us
        figures |= {} if trial.latency.ratio is None else {"latency_ratio": trial.latency.ratio}
    return figures


def _reason(chosen: MixedTrial, trials: Sequence[MixedTrial], goal: Goal, is_met: bool) -> str:
    """What it gives, and what the next larger mixture of the same kind would give."""
    mixture = chosen.mixture
    text = (
        f"{mixture.sqnr_db:.1f} dB with {mixture.float_share:.1%} of MACs in float and {mixture.boundaries} conversions"
    )
    if not is_met:
        text = f"no plan that was tried meets the goal; this one is the closest ({chosen.missed_by(goal)}): {text}"
    larger = [
        trial.mixture
        for trial in trials
        if chosen.family in (trial.family, (trial.family[0], "")) and len(trial.mixture.wide) > len(mixture.wide)
    ]
    if not larger:
        return text
    following = min(larger, key=lambda other: len(other.wide))
    return f"{text}; {following.label} would give {following.sqnr_db:.1f} dB"


def island_decisions(workbench: Workbench, chosen: MixedTrial) -> list[Decision]:
    """A decision for every island: why it exists."""
    mixture = chosen.mixture
    total = 10 ** (-chosen.base_db / 10) or 1.0
    decisions = []
    for island in mixture.islands:
        names = {unit.name for unit in island}
        inside = [candidate for candidate in mixture.wide if names & {unit.name for unit in candidate.units}]
        share = min(sum(candidate.gain for candidate in inside) / total, 1.0)
        base, wide = chosen.family
        operators = f"{len(island)} operator{'s' * (len(island) != 1)}"
        decisions.append(
            Decision(
                knob=NAME,
                place=at_node(island[0].nodes[0]),
                taken=wide,
                alternatives=(Alternative(base, {"noise_share": share}), Alternative(wide)),
                rule="operators with the most noise at the outputs per cost become wider first",
                reason=f"{operators} from here on; in {base}, they add {share:.0%} of the noise at the worst output",
                samples=len(ranking_samples(workbench, mixture.variant.model)),
            )
        )
    return decisions
