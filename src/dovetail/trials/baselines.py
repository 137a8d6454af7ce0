"""Other programs beside the fitted one: their estimates, and their latency by turns in one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.backend import Backend, Baseline, BaselineCase, Compiled, Measured
from dovetail.errors import InputError
from dovetail.trials.workbench import Workbench

# What the fitted program is called beside the others.
FITTED = "fitted"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The programs whose estimates can be compared, by name, and the latency of those that were timed."""

    estimated: Mapping[str, Compiled] = field(default_factory=dict)
    measured: Measured | str | None = None


def chosen_baselines(wish: str, backend: Backend, target: str) -> tuple[Baseline, ...]:
    """``--baselines``: none, first (the default), all, or names with commas between."""
    if wish in ("none", "first", "all"):
        count = {"none": 0, "first": 1, "all": len(backend.baselines)}[wish]
        return backend.baselines[:count]
    by_name = {baseline.name: baseline for baseline in backend.baselines}
    for name in (names := [name.strip() for name in wish.split(",")]):
        if name not in by_name:
            known = ", ".join(("none", "first", "all", *by_name))
            raise InputError(f"--baselines {name}: {target} has no such baseline; expected one of {known}")
    return tuple(by_name[name] for name in names)


def compare(
    bench: Workbench, fitted: Compiled, baselines: tuple[Baseline, ...], case: BaselineCase, folder: Path
) -> Comparison:
    """Build the baselines where they can be compared with what was fitted, each in a folder of its own."""
    if fitted.error:
        return Comparison()
    if bench.backend.estimator is not None and fitted.estimate is not None:
        return Comparison({FITTED: fitted, **{b.name: _built(b, case, folder) for b in baselines}})
    if bench.backend.timer is None or fitted.placement is None or not baselines:
        return Comparison({FITTED: fitted})
    programs = {FITTED: fitted}
    for baseline in baselines:
        programs[baseline.name] = _built(baseline, case, folder)
        if error := programs[baseline.name].error:
            return Comparison({FITTED: fitted}, f"{baseline.name} was not compiled: {error}")
    return Comparison({FITTED: fitted}, bench.time(programs, baselines[0].name))


def _built(baseline: Baseline, case: BaselineCase, folder: Path) -> Compiled:
    place = folder / f"baseline_{baseline.name}"
    place.mkdir(parents=True, exist_ok=True)
    return baseline.build(case, place)
