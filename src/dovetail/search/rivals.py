"""Precisions of which one is to be chosen, measured on the target itself: compiled, run, and timed by turns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import Compiled, Measured, Sample
from dovetail.errors import BackendError
from dovetail.model.ranked import ranked_outputs
from dovetail.model.session import Mode
from dovetail.plan.make import make_plan
from dovetail.plan.request import Request
from dovetail.qdq.boundary import real_stream
from dovetail.stats import Stats
from dovetail.target import Target
from dovetail.verify.compare import compare_runs
from dovetail.verify.run import SessionRun
from dovetail.verify.verdicts import target_db

# Less than this is noise of the clock.
FASTER = 0.95
# What the worst output must keep against float for speed to decide.
GOOD_DB = 25.0
RULE = (
    f"the faster one, where it takes less than {FASTER:g} of the other's time and its worst output keeps {GOOD_DB:g} "
    "dB against float; otherwise the one whose worst output is closer to float"
)


@dataclass(frozen=True, slots=True)
class Score:
    """The caller's metric: the held-out samples, and its figures of what a candidate gives for them."""

    samples: Callable[[], Iterable[Sample]]
    figures: Callable[[Iterator[Sample]], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One precision as it was measured: the worst output against float, simulated and on the target, and its time.

    ``time_ratio``: its time over that of the candidate with the best output, from one interleaved run. ``figures``: the
    caller's metric, which decides nothing, because its samples are held out. ``failure``: why it does not run.
    """

    precision: str
    simulation_sqnr_db: float
    target_sqnr_db: float | None = None
    median_us: float | None = None
    time_ratio: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""

    def __str__(self) -> str:
        if self.failure:
            return f"{self.precision} does not run ({self.failure})"
        if self.target_sqnr_db is None:
            return f"{self.precision} {self.simulation_sqnr_db:.1f} dB in simulation"
        said = f"{self.precision} {self.target_sqnr_db:.1f} dB"
        if self.time_ratio is not None and self.median_us is not None:
            said += f" in {self.median_us:.0f} us ({self.time_ratio:.2f}x)"
        return said + "".join(f", {name} {value:.4f}" for name, value in self.figures.items())


def pick(rows: Sequence[Candidate]) -> tuple[Candidate, str]:
    """The candidate that the rule takes, and why."""
    ran = [row for row in rows if row.target_sqnr_db is not None and not row.failure]
    if not ran:
        best = max(rows, key=lambda row: row.simulation_sqnr_db)
        return best, "its worst output is the closest to float in simulation; none was run on the target"
    if len(ran) == 1:
        return ran[0], "no other runs on the target"
    best = max(ran, key=lambda row: row.target_sqnr_db or 0.0)
    fast = min(ran, key=lambda row: 1.0 if row.time_ratio is None else row.time_ratio)
    if (fast.time_ratio or 1.0) < FASTER and (fast.target_sqnr_db or 0.0) >= GOOD_DB:
        return (
            fast,
            f"it takes {fast.time_ratio:.2f} of the time, and its worst output keeps {fast.target_sqnr_db:.1f} dB",
        )
    if any(row.time_ratio is None for row in ran):
        return best, "its worst output is closer to float; how long they take was not measured"
    if (fast.time_ratio or 1.0) < FASTER:
        return best, f"its worst output is closer to float, and what is faster does not keep {GOOD_DB:g} dB"
    return best, "its worst output is closer to float, and no other is faster"


class Trials:
    """Compiles candidates into a folder each, where ``keep`` writes them down, runs them and times them by turns."""

    def __init__(
        self,
        model: ir.Model,
        target: Target,
        stats: Stats,
        samples: Sequence[Sample],
        folder: Path,
        keep: Callable[[Compiled, Path], object],
        score: Score | None = None,
    ) -> None:
        self._model, self._target, self._stats = model, target, stats
        self._samples, self._folder, self._keep, self._score = samples, folder, keep, score
        self._ranked = ranked_outputs(model.graph)

    def measured(self, rows: Sequence[Candidate], requests: Mapping[str, Request]) -> tuple[Candidate, ...]:
        """The same candidates with what the target shows of them."""
        self._folder.mkdir(parents=True, exist_ok=True)
        exact = list(SessionRun(self._model, Mode.FLOAT, self._folder)(self._samples))
        compiled: dict[str, Compiled] = {}
        found = {}
        for row in rows:
            found[row.precision], compiled[row.precision] = self._run(row, requests[row.precision], exact)
        ran = {name: row for name, row in found.items() if not row.failure}
        if len(ran) < 2 or self._target.measure is None:
            return tuple(found.values())
        best = max(ran, key=lambda name: ran[name].target_sqnr_db or 0.0)
        timed = self._target.measure({name: compiled[name] for name in ran}, best, self._samples[0])
        return tuple(_timed(row, timed) for row in found.values())

    def _run(self, row: Candidate, request: Request, exact: list[Sample]) -> tuple[Candidate, Compiled]:
        place = self._folder / row.precision
        (place / "compile").mkdir(parents=True, exist_ok=True)
        plan = make_plan(self._model, self._target, self._stats, request)
        compiled = self._target.try_out(self._target.emit(self._model, plan, place), place / "compile")
        self._keep(compiled, place / "compile")
        if compiled.error or self._target.run is None:
            return replace(row, failure=compiled.error or self._target.no_run), compiled
        stream = real_stream(partial(self._target.run, compiled), plan)
        held_out: Iterable[Sample] = () if self._score is None else self._score.samples()
        try:
            ran = stream(itertools.chain(self._samples, held_out))  # in one go: starting a target costs seconds
            found = compare_runs(exact, itertools.islice(ran, len(exact)), self._ranked).outputs
            figures = {} if self._score is None else dict(self._score.figures(ran))
        except BackendError as error:
            return replace(row, failure=str(error)), compiled
        worst = min((target_db(one.sqnr_db, row.simulation_sqnr_db) for one in found.values()), default=0.0)
        return replace(row, target_sqnr_db=worst, figures=figures), compiled


def _timed(row: Candidate, timed: Measured | str) -> Candidate:
    if isinstance(timed, str) or row.precision not in timed.median_us:
        return row
    return replace(row, median_us=timed.median_us[row.precision], time_ratio=timed.ratios[row.precision])
