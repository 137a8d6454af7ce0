"""Other programs beside the fitted one: their estimates, and their latency by turns in one run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.backend import Backend, Baseline, BaselineCase, CompileResult, MeasuredLatency
from dovetail.errors import InputError
from dovetail.trials.workbench import Workbench

# What the fitted program is called beside the others.
FITTED = "fitted"
# ``--baselines``, where it names none: how many of those that a target has.
_COUNTS = {"none": 0, "first": 1, "all": None}


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """The programs whose estimates can be compared, by name, and the latency of those that were timed."""

    estimated: Mapping[str, CompileResult] = field(default_factory=dict)
    measured: MeasuredLatency | str | None = None


def check_wish(wish: str, backend: Backend, target: str) -> None:
    """Refuse ``--baselines`` that names one which the target does not have."""
    known = [baseline.name for baseline in backend.baselines]
    for name in [] if wish in _COUNTS else wish.split(","):
        if name.strip() not in known:
            expected = ", ".join((*_COUNTS, *known))
            raise InputError(f"--baselines {name}: {target} has no such baseline; expected one of {expected}")


def _chosen(wish: str, baselines: tuple[Baseline, ...]) -> tuple[Baseline, ...]:
    """Those of a capability that are asked for: by number, or by name."""
    names = [name.strip() for name in wish.split(",")]
    return baselines[: _COUNTS[wish]] if wish in _COUNTS else tuple(one for one in baselines if one.name in names)


def compare(bench: Workbench, fitted: CompileResult, wish: str, case: BaselineCase, folder: Path) -> BaselineComparison:
    """Build what a fitted program can be compared with, each in a folder of its own: by estimate, by time, or both."""
    estimator, timer = bench.backend.estimator, bench.backend.timer
    if fitted.error or not bench.available:
        return BaselineComparison({} if fitted.error else {FITTED: fitted})
    for old in folder.glob("baseline_*"):
        shutil.rmtree(old)
    estimating = () if estimator is None or fitted.estimate is None else _chosen(wish, estimator.baselines)
    timing = () if timer is None else _chosen(wish, timer.baselines)
    built = {one.name: one for one in (*estimating, *timing)}
    programs = {FITTED: fitted, **{name: _built(one, case, folder) for name, one in built.items()}}
    estimated = {name: programs[name] for name in (FITTED, *(one.name for one in estimating))}
    return BaselineComparison(estimated, _timed(bench, programs, [one.name for one in timing]) if timing else None)


def _timed(bench: Workbench, programs: Mapping[str, CompileResult], names: list[str]) -> MeasuredLatency | str:
    """The latency of all by turns in one run; why there is none where one was not compiled."""
    for name in names:
        if error := programs[name].error:
            return f"{name} was not compiled: {error}"
    return bench.time({name: programs[name] for name in (FITTED, *names)}, names[0])


def _built(baseline: Baseline, case: BaselineCase, folder: Path) -> CompileResult:
    place = folder / f"baseline_{baseline.name}"
    place.mkdir(parents=True, exist_ok=True)
    return baseline.build(case, place)
