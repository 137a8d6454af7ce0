"""Baseline programs to compare the fitted one with: by the vendor's estimate, and by latency measured in one run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.backend import Backend, Baseline, BaselineCase, CompileResult, MeasuredLatency
from dovetail.errors import InputError
from dovetail.trials.workbench import Build, Workbench

# The name of the fitted program in comparisons.
FITTED = "fitted"
# The values of ``--baselines`` that are not names: how many of the target's baselines they select.
_COUNTS = {"none": 0, "first": 1, "all": None}


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """The programs with estimates, by name, and the latency of those that were timed (or why it is missing)."""

    estimated: Mapping[str, CompileResult] = field(default_factory=dict)
    measured: MeasuredLatency | str | None = None

    def first_ratio(self) -> tuple[float | None, str]:
        """The latency of the fitted program relative to the first baseline; if it is not known, why."""
        if isinstance(self.measured, MeasuredLatency):
            return self.measured.ratios.get(FITTED), ""
        fitted, *others = [program.estimate for program in self.estimated.values()] or [None]
        if fitted is not None and others and others[0] is not None:
            ratio = fitted.ratio_to(others[0])
            return ratio, "" if ratio is not None else "the two estimates leave different operators without a cost"
        return None, self.measured or "there is no estimate of the fitted program and of a baseline"


def check_baselines_option(wish: str, backend: Backend, target: str) -> None:
    """Raise InputError if ``--baselines`` names a baseline that the target does not have."""
    available = [baseline.name for baseline in backend.baselines]
    for name in [] if wish in _COUNTS else wish.split(","):
        if name.strip() not in available:
            expected = ", ".join((*_COUNTS, *available))
            raise InputError(f"--baselines {name}: {target} has no such baseline; expected one of {expected}")


def _chosen(wish: str, baselines: tuple[Baseline, ...]) -> tuple[Baseline, ...]:
    """The baselines that ``--baselines`` selects, by count or by name."""
    if wish in _COUNTS:
        return baselines[: _COUNTS[wish]]
    names = [name.strip() for name in wish.split(",")]
    return tuple(baseline for baseline in baselines if baseline.name in names)


def compare(workbench: Workbench, build: Build, wish: str, case: BaselineCase, folder: Path) -> BaselineComparison:
    """Build the selected baselines, each in its own folder, and compare them by estimate, by latency, or both."""
    estimator, timer, fitted = workbench.backend.estimator, workbench.backend.timer, build.compiled
    if fitted.error or not workbench.available:
        return BaselineComparison({} if fitted.error else {FITTED: fitted})
    for old in folder.glob("baseline_*"):
        shutil.rmtree(old)
    to_estimate = () if estimator is None or fitted.estimate is None else _chosen(wish, estimator.baselines)
    is_compared = timer is not None and (timer.by_default or wish != "first" or workbench.goal.max_latency is not None)
    to_time = _chosen(wish, timer.baselines) if timer is not None and is_compared else ()
    baselines = {baseline.name: baseline for baseline in (*to_estimate, *to_time)}
    programs = {FITTED: fitted, **{name: _built(baseline, case, folder) for name, baseline in baselines.items()}}
    estimated = {name: programs[name] for name in (FITTED, *(baseline.name for baseline in to_estimate))}
    others = {baseline.name: programs[baseline.name] for baseline in to_time}
    measured = _timed(workbench, build, others) if others else None
    return BaselineComparison(estimated, measured)


def _timed(workbench: Workbench, build: Build, others: Mapping[str, CompileResult]) -> MeasuredLatency | str:
    """The latency of the programs, alternately, in one process; or why there is none, if one was not compiled."""
    for name, program in others.items():
        if program.error:
            return f"{name} was not compiled: {program.error}"
    return workbench.time({FITTED: build, **others}, next(iter(others)))


def _built(baseline: Baseline, case: BaselineCase, folder: Path) -> CompileResult:
    build_folder = folder / f"baseline_{baseline.name}"
    build_folder.mkdir(parents=True, exist_ok=True)
    return baseline.build(case, build_folder)
