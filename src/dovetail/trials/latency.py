"""How long builds of one model take: as the vendor's compiler estimates, else as measured on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dovetail.backend import CompileResult, MeasuredLatency
from dovetail.trials.workbench import Workbench

T = TypeVar("T")
# Programs whose measured times differ by less are equally fast.
SAME_TIME = 0.05
_BASELINE = "baseline"


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


def latencies(workbench: Workbench, programs: Sequence[CompileResult]) -> list[Latency] | None:
    """The latency of every program; None if it is known for none of them, or not for all.

    The first baseline is built only if the caller limits the latency.
    """
    baseline = workbench.baseline() if workbench.goal.max_latency is not None else None
    estimates = [program.estimate for program in programs]
    if programs and all(estimate is not None for estimate in estimates):
        base = None if baseline is None else baseline.estimate
        return [
            Latency(estimate.mid_us, None if base is None else estimate.ratio_to(base), estimate.ops_without_cost)
            for estimate in estimates
            if estimate is not None
        ]
    return _measured(workbench, programs, baseline) if programs and workbench.backend.timer is not None else None


def _measured(
    workbench: Workbench, programs: Sequence[CompileResult], baseline: CompileResult | None
) -> list[Latency] | None:
    """The programs, and the baseline if it was compiled, timed alternately in one process."""
    named = {str(number): program for number, program in enumerate(programs)}
    has_baseline = baseline is not None and not baseline.error
    if baseline is not None and not baseline.error:
        named[_BASELINE] = baseline
    timed = workbench.time(named, _BASELINE if has_baseline else "0")
    if not isinstance(timed, MeasuredLatency):
        return None
    return [
        Latency(timed.median_us[str(number)], timed.ratios[str(number)] if has_baseline else None, measured=True)
        for number in range(len(programs))
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
