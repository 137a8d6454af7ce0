"""Which precision, and which operators in a wider one: the cheapest plan of those tried that is good enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dovetail.errors import InputError
from dovetail.finding import WHOLE_MODEL, Status, Thresholds
from dovetail.model.place import at_node
from dovetail.plan.constraints import build_problem
from dovetail.trials.decision import Alternative, Decision
from dovetail.trials.goal import ENOUGH_DB, MARGIN_DB, SAME_DB, WITHIN_DB, Goal
from dovetail.trials.knob import Knob, Outcome, decide_all
from dovetail.trials.knobs.rounding import ROUNDING
from dovetail.trials.latency import Latency, fastest, latencies
from dovetail.trials.mixed import MixedSearch, Mixture, judged_samples, may_lose_less, ranking_samples, uniform
from dovetail.trials.policy import shortest_prefix
from dovetail.trials.variant import Variant, in_precision
from dovetail.trials.workbench import Build, Workbench
from dovetail.verify import verdicts

NAME = "mixed"
# The option of the knob: the caller's ``--precision``.
OPTION = "precision"
# How many plans are compiled at most to compare their estimates, or to time them: lowering one takes a minute or more.
MOST_BUILDS, MOST_TIMED = 8, 5


def mixed(*inner: Knob) -> Knob:
    """The knob; ``inner`` knobs are run for every base precision separately, because their decisions depend on it."""
    return Knob(NAME, partial(_decide, inner))


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """A mixture, and what is known of it beyond the simulation.

    ``family``: the names of the base and of the wide precision. ``base_db``: SQNR of the base alone. ``decisions``: of
    the inner knobs, for the base. ``drops``: by how much each value of the metric gets worse, if it was computed.
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
        chosen, built = _best_within(workbench, trials)
    else:
        chosen, built = _cheapest(workbench, enough or [max(trials, key=lambda trial: trial.mixture.sqnr_db)])
    known = {id(trial.mixture): trial for trial in built}
    rows = [known.get(id(trial.mixture), trial) for trial in trials]
    is_met = bool(enough) and _is_within(chosen, workbench)
    decisions = (_whole(workbench, chosen, rows, is_met), *_islands(workbench, chosen))
    return chosen.mixture.variant, (*decisions, *chosen.decisions)


def _is_within(trial: _Trial, workbench: Workbench) -> bool:
    """Whether a mixture is within the caller's budget, as far as that is known."""
    goal = workbench.goal
    if goal.max_float is not None and trial.mixture.float_share > goal.max_float:
        return False
    if goal.max_latency is None or trial.latency is None or trial.latency.ratio is None:
        return True
    return trial.latency.ratio <= goal.max_latency


def _tried(inner: tuple[Knob, ...], workbench: Workbench, variant: Variant, ladder: Sequence[str]) -> list[_Trial]:
    """Every precision alone, and every quantized one with more and more operators in another one.

    Weights are rounded as requested before a precision is judged: it can then need fewer wide operators.
    """
    precisions = [workbench.table.precisions[name] for name in ladder]
    limit = workbench.goal.max_float
    trials = []
    for index, precision in enumerate(precisions):
        workbench.progress(index, len(precisions))
        base, decisions = decide_all((*inner, ROUNDING), workbench, in_precision(precision)(variant))
        alone = uniform(workbench, base)
        trials.append(_Trial(alone, (precision.name, ""), alone.sqnr_db, decisions))
        for wide in precisions:
            if may_lose_less(precision, wide):
                mixtures = MixedSearch(workbench, base, wide, limit).mixtures()
                family = (precision.name, wide.name)
                trials += [_Trial(mixture, family, alone.sqnr_db, decisions) for mixture in mixtures]
    allowed = [trial for trial in trials if limit is None or trial.mixture.float_share <= limit]
    return _scored(workbench, allowed or trials[:1]) if workbench.goal.limits_metric else allowed or trials[:1]


def _scored(workbench: Workbench, trials: Sequence[_Trial]) -> list[_Trial]:
    """The trials with the caller's metric on held-out samples in simulation, as far as it is needed.

    Of a family, a mixture with more wide operators is taken to be good where one with fewer is: the smallest good one
    is found by halving.
    """
    drops: dict[int, Mapping[str, float]] = {}

    def is_good(family: Sequence[_Trial]) -> bool:
        largest = family[-1]
        drops[id(largest)] = workbench.drops(largest.mixture.variant)
        return all(drop <= workbench.goal.drop_of(name) for name, drop in drops[id(largest)].items())

    for family in dict.fromkeys(trial.family for trial in trials):
        shortest_prefix([trial for trial in trials if trial.family == family], is_good)
    return [replace(trial, drops=drops.get(id(trial))) for trial in trials]


def _is_good(trial: _Trial, trials: Sequence[_Trial], goal: Goal) -> bool:
    """Whether a mixture meets the goal; without one, whether it is close to the best, or with a budget as good."""
    if goal.limits_accuracy:
        lowest_db = min(trial.mixture.sqnr_db, trial.mixture.pooled_db)
        has_sqnr = goal.min_sqnr_db is None or lowest_db >= goal.min_sqnr_db + MARGIN_DB
        has_metric = not goal.limits_metric or trial.drops is not None
        return has_sqnr and has_metric and all(drop <= goal.drop_of(name) for name, drop in (trial.drops or {}).items())
    best_db = max(other.mixture.sqnr_db for other in trials)
    if goal.limits_cost:
        return trial.mixture.sqnr_db >= best_db - SAME_DB
    return trial.mixture.sqnr_db >= min(best_db, ENOUGH_DB) - WITHIN_DB


def _cheapest(workbench: Workbench, trials: Sequence[_Trial]) -> tuple[_Trial, list[_Trial]]:
    """The cheapest trial that the target builds as planned, and all that were built, with their latencies.

    Of each family of mixtures only those with the fewest conversions and with the fewest wide operators are built. If
    there are too many, the smallest are; if they are timed, first the precisions without wider operators, because MACs
    in float say little about time. If none is usable, the first is returned: its verdicts say why it is not.
    """
    families: dict[tuple[str, str], _Trial] = {}
    for trial in sorted(trials, key=lambda trial: (trial.size, -trial.mixture.sqnr_db)):
        families.setdefault(trial.family, trial)
    fewest = {trial.family: trial for trial in sorted(trials, key=lambda trial: -len(trial.mixture.wide))}
    both = dict.fromkeys((*families.values(), *fewest.values()))  # in this order, whatever their addresses
    smallest = sorted(both, key=lambda trial: trial.size)
    if not workbench.available or (len(smallest) == 1 and workbench.goal.max_latency is None):
        return smallest[0], []
    if workbench.backend.estimator is None and workbench.backend.timer is None:
        return _first_usable(workbench, smallest[:MOST_BUILDS])
    if workbench.backend.estimator is None:
        smallest.sort(key=lambda trial: bool(trial.mixture.wide))
    built = _built_each(workbench, smallest[: _most(workbench)])
    usable = [trial for trial in built if not trial.failure]
    return (fastest(usable, lambda trial: trial.latency, lambda trial: trial.size) if usable else built[0]), built


def _most(workbench: Workbench) -> int:
    return MOST_TIMED if workbench.backend.estimator is None else MOST_BUILDS


def _best_within(workbench: Workbench, trials: Sequence[_Trial]) -> tuple[_Trial, list[_Trial]]:
    """The fastest of the trials with the highest SQNR within the budget; if none is within it, the fastest of all.

    If there are more than can be built, every precision alone is, and of the others as many, evenly, from the highest
    SQNR to the lowest.
    """
    built = _built_each(workbench, _spread(trials, _most(workbench)))
    usable = [trial for trial in built if not trial.failure]
    limit = workbench.goal.max_latency or 0.0
    within = [trial for trial in usable if trial.latency is not None and trial.latency.is_within(limit)]
    if within:
        best_db = max(trial.mixture.sqnr_db for trial in within)
        usable = [trial for trial in within if trial.mixture.sqnr_db >= best_db - SAME_DB]
    return fastest(usable or built, lambda trial: trial.latency, lambda trial: trial.size), built


def _spread(trials: Sequence[_Trial], most: int) -> list[_Trial]:
    """At most ``most`` trials, highest SQNR first: every precision alone, and the others evenly."""
    ordered = sorted(trials, key=lambda trial: trial.mixture.sqnr_db, reverse=True)
    mixtures = [trial for trial in ordered if trial.mixture.wide]
    room = max(most - (len(ordered) - len(mixtures)), 0)
    step = max(len(mixtures) - 1, 1) / max(room - 1, 1)
    indices = {round(number * step) for number in range(room)} if len(mixtures) > room else set(range(len(mixtures)))
    chosen = {id(trial) for index, trial in enumerate(mixtures) if index in indices}
    return [trial for trial in ordered if not trial.mixture.wide or id(trial) in chosen][:most]


def _first_usable(workbench: Workbench, trials: Sequence[_Trial]) -> tuple[_Trial, list[_Trial]]:
    """Build the trials in turn until the target builds one as planned."""
    built = []
    for trial in trials:
        built.append(_built(workbench, trial, workbench.build(trial.mixture.variant)))
        if not built[-1].failure:
            return built[-1], built
    return built[0], built


def _built_each(workbench: Workbench, trials: Sequence[_Trial]) -> list[_Trial]:
    """The trials with why the target does not build them as planned, or else with their latencies."""
    builds = workbench.build_each([trial.mixture.variant for trial in trials])
    built = [_built(workbench, trial, build) for trial, build in zip(trials, builds, strict=True)]
    usable = [number for number, trial in enumerate(built) if not trial.failure]
    known = latencies(workbench, [builds[number].compiled for number in usable])
    for number, latency in zip(usable, known or (), strict=known is not None):
        built[number] = replace(built[number], latency=latency)
    return built


def _built(workbench: Workbench, trial: _Trial, build: Build) -> _Trial:
    """The trial, and why the target does not build it as planned, if it does not."""
    if build.compiled.error:
        return replace(trial, failure=build.compiled.error)
    fidelity = verdicts.fidelity(workbench.backend.read_back(build.compiled, build.plan), Thresholds())
    return replace(trial, failure=fidelity.reason if fidelity.status is Status.FAIL else "")


def _whole(workbench: Workbench, chosen: _Trial, trials: Sequence[_Trial], is_met: bool) -> Decision:
    """The decision for the whole model, with all that was tried: accuracy against cost."""
    not_compiled = "" if workbench.available else "; none was compiled, because the target's compiler is not available"
    return Decision(
        knob=NAME,
        place=WHOLE_MODEL,
        taken=chosen.mixture.label,
        alternatives=tuple(Alternative(trial.mixture.label, _figures(trial), trial.failure) for trial in trials),
        rule=f"{_criterion(workbench.goal)}: {workbench.goal}",
        reason=_reason(chosen, trials, workbench.goal, is_met) + not_compiled,
        samples=len(judged_samples(workbench, chosen.mixture.variant.model)),
    )


def _criterion(goal: Goal) -> str:
    if goal.limits_cost and not goal.limits_accuracy:
        return "the best within the budget"
    return "the cheapest that is good enough"


def _figures(trial: _Trial) -> dict[str, float]:
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


def _reason(chosen: _Trial, trials: Sequence[_Trial], goal: Goal, is_met: bool) -> str:
    """What it gives, and what the next larger mixture of the same kind would give."""
    mixture = chosen.mixture
    text = (
        f"{mixture.sqnr_db:.1f} dB with {mixture.float_share:.1%} of MACs in float and {mixture.boundaries} conversions"
    )
    if not is_met:
        text = f"no plan that was tried meets the goal ({goal}); this one is the closest: {text}"
    larger = [
        trial.mixture
        for trial in trials
        if chosen.family in (trial.family, (trial.family[0], "")) and len(trial.mixture.wide) > len(mixture.wide)
    ]
    if not larger:
        return text
    following = min(larger, key=lambda other: len(other.wide))
    return f"{text}; {following.label} would give {following.sqnr_db:.1f} dB"


def _islands(workbench: Workbench, chosen: _Trial) -> list[Decision]:
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
