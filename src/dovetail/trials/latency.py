"""How long builds of one model take: as the vendor's compiler estimates, else as measured on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dovetail.backend import CompileResult
from dovetail.errors import BackendError
from dovetail.trials.workbench import Build, Workbench

T = TypeVar("T")
# Programs whose measured times differ by less are equally fast.
SAME_TIME = 0.05
_BASELINE = "baseline"
_US, _RATIO = "us", "ratio"


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency of one build.

    ``ratio``: relative to the first baseline; None if that was not built, or is not comparable. ``ops_without_cost``:
    those that an estimate leaves out. ``measured``: on this machine; what is measured again is up to ``SAME_TIME`` off.
    """

    us: float
    ratio: float | None = None
    ops_without_cost: int = 0
    measured: bool = False

    def is_within(self, limit: float) -> bool:
        """Whether the ratio is certainly within a limit: a measured one is measured again for the verdict."""
        return self.ratio is not None and self.ratio * (1 + SAME_TIME * self.measured) <= limit


def latencies(workbench: Workbench, builds: Sequence[Build]) -> list[Latency] | str:
    """The latency of every build, or why it is not known for all of them.

    The first baseline is built only if the caller limits the latency.
    """
    baseline = workbench.baseline() if workbench.goal.max_latency is not None else None
    estimates = [build.compiled.estimate for build in builds]
    known = [estimate for estimate in estimates if estimate is not None]
    if len(known) == len(builds):
        base = None if baseline is None else baseline.estimate
        return [
            Latency(estimate.mid_us, None if base is None else estimate.ratio_to(base), estimate.ops_without_cost)
            for estimate in known
        ]
    if workbench.backend.timer is None:
        reasons = (build.compiled.not_estimated for build in builds)
        return next(filter(None, reasons), "the compiler does not estimate it for all plans")
    return _measured(workbench, builds, None if baseline is None or baseline.error else baseline)


def _measured(workbench: Workbench, builds: Sequence[Build], baseline: CompileResult | None) -> list[Latency] | str:
    """The builds, and the baseline if there is one, timed alternately in one process; the same program once."""
    programs: dict[str, Build | CompileResult] = {build.digest: build for build in builds}
    relative_to = next(iter(programs))
    if baseline is not None:
        programs[_BASELINE], relative_to = baseline, _BASELINE

    def measured() -> dict[str, float]:
        timed = workbench.time(programs, relative_to)
        if isinstance(timed, str):
            raise BackendError(timed)
        times = {f"{name} {_US}": us for name, us in timed.median_us.items()}
        return times | {f"{name} {_RATIO}": ratio for name, ratio in timed.ratios.items()}

    names = [f"{name} {unit}" for name in programs for unit in (_US, _RATIO)]
    try:
        figures = workbench.cached_times(builds, f"timed relative to {relative_to}", measured, names)
    except BackendError as error:
        return str(error)
    return [
        Latency(
            figures[f"{build.digest} {_US}"],
            figures[f"{build.digest} {_RATIO}"] if baseline is not None else None,
            measured=True,
        )
        for build in builds
    ]


def fastest(items: Sequence[T], latency: Callable[[T], Latency | None], size: Callable[[T], tuple[float, ...]]) -> T:
    """The fastest item, of equally fast ones the smallest; the smallest if the latencies cannot be compared.

    Estimates that leave different numbers of operators without a cost cannot be compared.
    """
    known = {index: found for index, item in enumerate(items) if (found := latency(item)) is not None}
    if len(known) < len(items) or len({found.ops_without_cost for found in known.values()}) > 1:
        return min(items, key=size)
    return min((items[index] for index in _equally_fast(known)), key=size)


def _equally_fast(known: Mapping[int, Latency]) -> list[int]:
    """The indices of the items that no other one is faster than."""
    least = min(known.values(), key=lambda found: found.us)
    limit_us = least.us * (1 + SAME_TIME * least.measured)
    return [index for index, found in known.items() if found.us <= limit_us]
