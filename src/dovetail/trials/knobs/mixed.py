"""Which precision, and which operators in a wider one: the cheapest plan of those tried that is good enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dovetail.errors import InputError
from dovetail.finding import Status, Thresholds
from dovetail.numerics.methods import AUTO_ROUNDING, RoundingMethod
from dovetail.op_support import Precision
from dovetail.plan.constraints import build_problem
from dovetail.trials.goal import ENOUGH_DB, SAME_DB, WITHIN_DB, Goal
from dovetail.trials.knob import Knob, Outcome, decide_all
from dovetail.trials.knobs import rounding
from dovetail.trials.latency import fastest, latencies
from dovetail.trials.mixed import MixedSearch, may_lose_less, uniform
from dovetail.trials.mixed_decisions import NAME, MixedTrial, island_decisions, whole_decision
from dovetail.trials.policy import shortest_prefix
from dovetail.trials.variant import Variant, in_precision
from dovetail.trials.workbench import Build, Workbench
from dovetail.verify import verdicts

# The option of the knob: the caller's ``--precision``.
OPTION = "precision"
# How many plans are compiled at most to compare their estimates, or to time them: lowering one takes a minute or more.
MOST_BUILDS, MOST_TIMED = 8, 5


def mixed(*inner: Knob) -> Knob:
    """The knob; ``inner`` knobs are run for every base precision separately, because their decisions depend on it."""
    return Knob(NAME, partial(_decide, inner))


@dataclass(frozen=True, slots=True)
class _Choice:
    """The trial that was chosen, all that were built, and why their latencies are not known, if they are not."""

    trial: MixedTrial
    built: list[MixedTrial]
    no_latency: str = ""


def _decide(inner: tuple[Knob, ...], workbench: Workbench, variant: Variant) -> Outcome:
    ladder = workbench.table.choices.get(workbench.knob_options.get(OPTION, ""), ())
    if not ladder or not workbench.samples(1):
        return decide_all(inner, workbench, variant)
    goal = workbench.goal
    if not build_problem(variant.model, workbench.table).outputs and not goal.limits_metric:
        raise InputError(
            "--precision auto needs a float output to compare with float; for a model without one, add --eval, "
            "--metric and --max-drop"
        )
    trials = _tried(inner, workbench, variant, ladder)
    enough = [trial for trial in trials if _is_good(trial, trials, goal)]
    if goal.max_latency is not None and not goal.limits_accuracy and workbench.available:
        choice = _best_within(workbench, trials)
    else:
        choice = _cheapest(workbench, enough or [_closest(trials, goal)])
    built = {id(trial.mixture): trial for trial in choice.built}
    rows = [built.get(id(trial.mixture), trial) for trial in trials]
    is_met = bool(enough) and choice.trial.is_within_budget(goal)
    whole = whole_decision(workbench, choice.trial, rows, is_met=is_met, no_latency=choice.no_latency)
    islands = island_decisions(workbench, choice.trial)
    return choice.trial.mixture.variant, (whole, *islands, *choice.trial.decisions)


def _tried(inner: tuple[Knob, ...], workbench: Workbench, variant: Variant, ladder: Sequence[str]) -> list[MixedTrial]:
    """Every precision alone, and every quantized one with more and more operators in another one; no program twice.

    Weights are rounded before operators become wide, because that costs no latency: fewer are then needed.
    """
    precisions = [workbench.table.precisions[name] for name in ladder]
    limit = workbench.goal.max_float
    trials = []
    for index, precision in enumerate(precisions):
        workbench.progress(index, len(precisions))
        alone = _alone(inner, workbench, in_precision(precision)(variant))
        trials += alone
        for wide in precisions:
            if may_lose_less(precision, wide):
                trials += _with_wide(workbench, alone[-1], wide)
    distinct = _distinct([trial for trial in trials if limit is None or trial.mixture.float_share <= limit])
    allowed = distinct or trials[:1]
    return _scored(workbench, allowed) if workbench.goal.limits_metric else allowed


def _alone(inner: tuple[Knob, ...], workbench: Workbench, variant: Variant) -> list[MixedTrial]:
    """A precision for all operators, its weights rounded as requested; if that is not said, to nearest and otherwise.

    The last one is the base of mixtures. Another rounding is not tried if the precision is good enough without it.
    """
    base, decisions = decide_all((*inner, rounding.ROUNDING), workbench, variant)
    mixture, name = uniform(workbench, base), variant.request.precision.name
    nearest = MixedTrial(mixture, (name, ""), mixture.sqnr_db, decisions)
    is_open = workbench.knob_options.get(rounding.NAME) == AUTO_ROUNDING and variant.imported is None
    if not is_open or not variant.request.precision.weight.dtype.is_quantized or _is_enough(workbench, nearest):
        return [nearest]
    method = RoundingMethod.SECOND_ORDER
    rounded, more = rounding.rounded_if_better(workbench, base, method)
    if not rounded.rounded:
        return [replace(nearest, decisions=(*decisions, *more))]
    mixture = uniform(workbench, rounded, f"{name} {method}")
    return [nearest, MixedTrial(mixture, (name, ""), mixture.sqnr_db, (*decisions, *more))]


def _is_enough(workbench: Workbench, trial: MixedTrial) -> bool:
    """Whether no better plan is needed than this one, whatever the others are like."""
    goal = workbench.goal
    if goal.limits_metric:
        return replace(trial, drops=workbench.drops(trial.mixture.variant)).meets_accuracy(goal)
    return trial.meets_accuracy(goal) if goal.limits_accuracy else trial.mixture.sqnr_db >= ENOUGH_DB


def _with_wide(workbench: Workbench, base: MixedTrial, wide: Precision) -> list[MixedTrial]:
    """A precision with more and more operators in another one."""
    alone = base.mixture
    search = MixedSearch(workbench, alone.variant, wide, workbench.goal.max_float, alone.label)
    family = (base.family[0], wide.name)
    return [MixedTrial(mixture, family, alone.sqnr_db, base.decisions) for mixture in search.mixtures()]


def _distinct(trials: Sequence[MixedTrial]) -> list[MixedTrial]:
    """The trials without those that emit the same program as another one; a precision alone stays."""
    kept = {trial.mixture.digest: trial for trial in reversed(trials)}
    kept |= {trial.mixture.digest: trial for trial in reversed(trials) if not trial.mixture.wide}
    return [trial for trial in trials if kept[trial.mixture.digest] is trial]


def _scored(workbench: Workbench, trials: Sequence[MixedTrial]) -> list[MixedTrial]:
    """The trials with the caller's metric on held-out samples in simulation, as far as it is needed.

    Of a family, a mixture with more wide operators is taken to be good where one with fewer is: the smallest good one
    is found by halving.
    """
    drops: dict[int, Mapping[str, float]] = {}

    def is_good(family: Sequence[MixedTrial]) -> bool:
        largest = family[-1]
        drops[id(largest)] = workbench.drops(largest.mixture.variant)
        return all(drop <= workbench.goal.drop_of(name) for name, drop in drops[id(largest)].items())

    for family in dict.fromkeys(trial.family for trial in trials):
        shortest_prefix([trial for trial in trials if trial.family == family], is_good)
    return [replace(trial, drops=drops.get(id(trial))) for trial in trials]


def _is_good(trial: MixedTrial, trials: Sequence[MixedTrial], goal: Goal) -> bool:
    """Whether a mixture meets the goal; without one, whether it is close to the best, or with a budget as good."""
    if goal.limits_accuracy:
        return trial.meets_accuracy(goal)
    best_db = max(other.mixture.sqnr_db for other in trials)
    if goal.limits_cost:
        return trial.mixture.sqnr_db >= best_db - SAME_DB
    return trial.mixture.sqnr_db >= min(best_db, ENOUGH_DB) - WITHIN_DB


def _closest(trials: Sequence[MixedTrial], goal: Goal) -> MixedTrial:
    """The trial that is closest to the goal: by the metric if that is limited, then by SQNR."""

    def distance(trial: MixedTrial) -> tuple[float, float]:
        excess = max(trial.excess_drop(goal), 0.0) if goal.limits_metric else 0.0
        return excess, max(trial.missing_db(goal), 0.0)

    return min(trials, key=lambda trial: (*distance(trial), -trial.mixture.sqnr_db))


def _cheapest(workbench: Workbench, trials: Sequence[MixedTrial]) -> _Choice:
    """The cheapest trial that the target builds as planned, and all that were built, with their latencies.

    Of each family of mixtures only those with the fewest conversions and with the fewest wide operators are built. If
    there are too many, the smallest are; if they are timed, first the precisions without wider operators, because MACs
    in float say little about time. If none is usable, the first is returned: its verdicts say why it is not.
    """
    families: dict[tuple[str, str], MixedTrial] = {}
    for trial in sorted(trials, key=lambda trial: (trial.size, -trial.mixture.sqnr_db)):
        families.setdefault(trial.family, trial)
    fewest = {trial.family: trial for trial in sorted(trials, key=lambda trial: -len(trial.mixture.wide))}
    both = dict.fromkeys((*families.values(), *fewest.values()))  # in this order, whatever their addresses
    smallest = sorted(both, key=lambda trial: trial.size)
    if not workbench.available or (len(smallest) == 1 and workbench.goal.max_latency is None):
        return _Choice(smallest[0], [])
    if workbench.backend.estimator is None and workbench.backend.timer is None:
        return _first_usable(workbench, smallest[:MOST_BUILDS])
    if workbench.backend.estimator is None:
        smallest.sort(key=lambda trial: bool(trial.mixture.wide))
    built, no_latency = _built_each(workbench, smallest[: _most(workbench)])
    usable = [trial for trial in built if not trial.failure]
    chosen = fastest(usable, lambda trial: trial.latency, lambda trial: trial.size) if usable else built[0]
    return _Choice(chosen, built, no_latency)


def _most(workbench: Workbench) -> int:
    return MOST_TIMED if workbench.backend.estimator is None else MOST_BUILDS


def _best_within(workbench: Workbench, trials: Sequence[MixedTrial]) -> _Choice:
    """The fastest of the trials with the highest SQNR within the budget; if none is within it, the fastest of all.

    If there are more than can be built, every precision alone is, and of the others as many, evenly, from the highest
    SQNR to the lowest.
    """
    built, no_latency = _built_each(workbench, _spread(trials, _most(workbench)))
    usable = [trial for trial in built if not trial.failure]
    limit = workbench.goal.max_latency or 0.0
    within = [trial for trial in usable if trial.latency is not None and trial.latency.is_within(limit)]
    if within:
        best_db = max(trial.mixture.sqnr_db for trial in within)
        usable = [trial for trial in within if trial.mixture.sqnr_db >= best_db - SAME_DB]
    return _Choice(fastest(usable or built, lambda trial: trial.latency, lambda trial: trial.size), built, no_latency)


def _spread(trials: Sequence[MixedTrial], most: int) -> list[MixedTrial]:
    """At most ``most`` trials, highest SQNR first: every precision alone, better rounded, and the others evenly."""
    ordered = sorted(trials, key=lambda trial: trial.mixture.sqnr_db, reverse=True)
    mixtures = [trial for trial in ordered if trial.mixture.wide]
    alone = {trial.family: trial for trial in reversed(ordered) if not trial.mixture.wide}
    room = max(most - len(alone), 0)
    step = max(len(mixtures) - 1, 1) / max(room - 1, 1)
    indices = {round(number * step) for number in range(room)} if len(mixtures) > room else set(range(len(mixtures)))
    chosen = {id(trial) for trial in alone.values()} | {id(mixtures[index]) for index in indices}
    return [trial for trial in ordered if id(trial) in chosen][:most]


def _first_usable(workbench: Workbench, trials: Sequence[MixedTrial]) -> _Choice:
    """Build the trials in turn until the target builds one as planned."""
    built = []
    for trial in trials:
        built.append(_built(workbench, trial, workbench.build(trial.mixture.variant)))
        if not built[-1].failure:
            return _Choice(built[-1], built)
    return _Choice(built[0], built)


def _built_each(workbench: Workbench, trials: Sequence[MixedTrial]) -> tuple[list[MixedTrial], str]:
    """The trials with why the target does not build them as planned, or with latencies; and why these are not known."""
    builds = workbench.build_each([trial.mixture.variant for trial in trials])
    built = [_built(workbench, trial, build) for trial, build in zip(trials, builds, strict=True)]
    usable = [number for number, trial in enumerate(built) if not trial.failure]
    known = latencies(workbench, [builds[number] for number in usable]) if usable else []
    if isinstance(known, str):
        return built, known
    for number, latency in zip(usable, known, strict=True):
        built[number] = replace(built[number], latency=latency)
    return built, ""


def _built(workbench: Workbench, trial: MixedTrial, build: Build) -> MixedTrial:
    """The trial, and why the target does not build it as planned, if it does not."""
    if build.compiled.error:
        return replace(trial, failure=build.compiled.error)
    fidelity = verdicts.fidelity(workbench.backend.read_back(build.compiled, build.plan), Thresholds())
    return replace(trial, failure=fidelity.reason if fidelity.status is Status.FAIL else "")
