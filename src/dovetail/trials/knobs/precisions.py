"""Which of several precisions: each is compiled, run and timed on the target, with the caller's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dovetail.backend import CompileResult, MeasuredLatency
from dovetail.errors import BackendError
from dovetail.finding import WHOLE_MODEL
from dovetail.trials.decision import Alternative, Decision
from dovetail.trials.knob import Knob, Outcome, decide_all
from dovetail.trials.variant import Variant, in_precision
from dovetail.trials.workbench import Build, Workbench, worst_db

NAME = "precision"
SAMPLES = 16
# A smaller difference is measurement noise.
FASTER = 0.95
# The SQNR of the worst output against float that the faster precision must have to be chosen.
GOOD_DB = 25.0
CRITERION = (
    f"the faster one, if it takes less than {FASTER:g} of the other's time and its worst output has at least "
    f"{GOOD_DB:g} dB against float; otherwise the one whose worst output is closer to float"
)
SIMULATION_DB, TARGET_DB, LATENCY_US, RATIO = "simulation_sqnr_db", "target_sqnr_db", "latency_us", "time_ratio"


def precisions(*inner: Knob) -> Knob:
    """The knob; ``inner`` knobs are run for every precision separately, because their decisions depend on it."""
    return Knob(NAME, partial(_decide, inner))


def _decide(inner: tuple[Knob, ...], workbench: Workbench, variant: Variant) -> Outcome:
    candidates = workbench.table.choices.get(workbench.knob_options.get(NAME, ""), ())
    if not candidates:
        return decide_all(inner, workbench, variant)
    outcomes = {
        name: decide_all(inner, workbench, in_precision(workbench.table.precisions[name])(variant))
        for name in candidates
    }
    rows = [Alternative(name, {SIMULATION_DB: workbench.worst_db(outcomes[name][0], SAMPLES)}) for name in candidates]
    if workbench.available and workbench.backend.runner.run is not None:
        rows = _on_target(workbench, rows, [outcomes[name][0] for name in candidates])
    best, reason = pick(rows)
    chosen, decisions = outcomes[best.label]
    samples = len(workbench.samples(SAMPLES))
    decision = Decision(NAME, WHOLE_MODEL, best.label, tuple(rows), CRITERION, reason, samples)
    return chosen, (decision, *decisions)


def _on_target(workbench: Workbench, rows: Sequence[Alternative], variants: Sequence[Variant]) -> list[Alternative]:
    """The same candidates with values measured on the target."""
    builds = workbench.build_each(variants)
    ran = [_run(workbench, row, variant, build) for row, variant, build in zip(rows, variants, builds, strict=True)]
    programs: dict[str, CompileResult] = {
        row.label: build.compiled for row, build in zip(ran, builds, strict=True) if not row.failure
    }
    if len(programs) < 2:
        return ran
    best = max(programs, key=lambda name: next(row.figures[TARGET_DB] for row in ran if row.label == name))
    timed = workbench.time(programs, best)
    return [_timed(row, timed) for row in ran]


def _run(workbench: Workbench, row: Alternative, variant: Variant, build: Build) -> Alternative:
    if build.compiled.error:
        return replace(row, failure=build.compiled.error)
    try:
        agreement, figures = workbench.run(build, variant, SAMPLES)
    except BackendError as error:
        return replace(row, failure=str(error))
    return replace(row, figures={**row.figures, TARGET_DB: worst_db(agreement), **figures})


def _timed(row: Alternative, timed: MeasuredLatency | str) -> Alternative:
    if isinstance(timed, str) or row.label not in timed.median_us:
        return row
    latency = {LATENCY_US: timed.median_us[row.label], RATIO: timed.ratios[row.label]}
    return replace(row, figures={**row.figures, **latency})


def pick(rows: Sequence[Alternative]) -> tuple[Alternative, str]:
    """The candidate that the criterion chooses, and why; the metric is not used, because its data is held out."""
    ran = [row for row in rows if TARGET_DB in row.figures and not row.failure]
    if not ran:
        best = max(rows, key=lambda row: row.figures[SIMULATION_DB])
        return best, "its worst output is the closest to float in simulation; none was run on the target"
    if len(ran) == 1:
        return ran[0], "no other precision runs on the target"
    best = max(ran, key=lambda row: row.figures[TARGET_DB])
    fast = min(ran, key=lambda row: row.figures.get(RATIO, 1.0))
    ratio, fast_db = fast.figures.get(RATIO, 1.0), fast.figures[TARGET_DB]
    if ratio < FASTER and fast_db >= GOOD_DB:
        return fast, f"it takes {ratio:.2f} of the time, and its worst output has {fast_db:.1f} dB"
    if any(RATIO not in row.figures for row in ran):
        return best, "its worst output is closer to float; latency was not measured"
    if ratio < FASTER:
        return best, f"its worst output is closer to float, and the faster one has less than {GOOD_DB:g} dB"
    return best, f"its worst output is closer to float, and no other takes less than {FASTER:g} of its time"
