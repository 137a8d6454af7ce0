"""Ranking costs: subjects whose difference is within the noise of the samples have the same rank."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from dovetail.trials.sensitivity.measure import Cost

# Student's t with 1, 2, ... degrees of freedom: two costs differ if the mean of their differences, sample by sample, is
# more than this many standard errors from 0 (95 %, two-sided). With 2 samples that is 12.7 standard errors, not 2.
_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_T_MANY = 2.1
# With one sample there is no standard error; below 1 dB one run says nothing.
ONE_SAMPLE_DB = 1.0
# Above this, SQNR is that of float32 rounding, which is another one on another machine.
FLOAT32_DB = 90.0


def ranks(costs: Sequence[Cost]) -> list[int]:
    """The rank of each cost, 1 for the highest (the lowest SQNR); equal where no difference to the first one of the
    same rank is measurable."""
    order = sorted(range(len(costs)), key=lambda number: costs[number].mean_db)
    return _ranked(order, lambda first, number: differs(costs[first], costs[number]))


def ranks_by_drop(drops: Sequence[float], costs: Sequence[Cost], resolution: float) -> list[int]:
    """The rank of each drop of a metric, 1 for the largest; equal where they differ by no more than ``resolution``
    from the first one of the same rank. A drop that is NaN is the largest."""
    sizes = [math.inf if math.isnan(drop) else drop for drop in drops]
    order = sorted(range(len(sizes)), key=lambda number: (-sizes[number], costs[number].mean_db))
    # The factor is for rounding: 0.9956 - 0.9933 is a little more than 1 / 450.
    return _ranked(order, lambda first, number: _gap(sizes[first], sizes[number]) > resolution * 1.001)


def drop_of(value: float, in_float: float, *, lower_is_better: bool) -> float:
    """By how much a value of the metric is worse than in float; negative if it is better."""
    return value - in_float if lower_is_better else in_float - value


def resolution_of(figures: Mapping[str, float], name: str, samples: int) -> float:
    """What one sample contributes to a mean over all of them: smaller differences of a metric say nothing."""
    return max(1.0, abs(figures[name])) / samples


def differs(one: Cost, other: Cost) -> bool:
    """Whether two costs, on the same samples, differ by more than the noise."""
    pairs = zip(*_alike(one.per_sample_db, other.per_sample_db), strict=True)
    differences = [min(b, FLOAT32_DB) - min(a, FLOAT32_DB) for a, b in pairs]
    mean = abs(statistics.fmean(differences))
    if len(differences) < 2:
        return mean > ONE_SAMPLE_DB
    quantile = _T_95[len(differences) - 2] if len(differences) - 2 < len(_T_95) else _T_MANY
    return mean > quantile * statistics.stdev(differences) / math.sqrt(len(differences))


def _ranked(order: Sequence[int], differ: Callable[[int, int], bool]) -> list[int]:
    ranked, first, rank = [0] * len(order), -1, 0
    for position, number in enumerate(order):
        if first < 0 or differ(first, number):
            first, rank = number, position + 1
        ranked[number] = rank
    return ranked


def _gap(larger: float, smaller: float) -> float:
    return 0.0 if larger == smaller else larger - smaller


def _alike(one: Sequence[float], other: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Both with one figure per call of the model, if only one of them has a figure for every sample of a batch."""
    if len(one) == len(other):
        return one, other
    calls = min(len(one), len(other))
    return _per_call(one, calls), _per_call(other, calls)


def _per_call(figures: Sequence[float], calls: int) -> list[float]:
    size = len(figures) // calls
    return [statistics.fmean(figures[start : start + size]) for start in range(0, len(figures), size)]
