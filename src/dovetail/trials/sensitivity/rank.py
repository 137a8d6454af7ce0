"""Ranking costs: subjects whose difference is within the noise of the samples have the same rank."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from dovetail.trials.sensitivity.measure import Cost

# Two costs differ if their mean difference over the samples is more than this many standard errors of it.
STANDARD_ERRORS = 2.0
# With one sample there is no standard error; below 1 dB one run says nothing.
ONE_SAMPLE_DB = 1.0


def ranks(costs: Sequence[Cost]) -> list[int]:
    """The rank of each cost, 1 for the highest (the lowest SQNR); equal where no difference to the first one of the
    same rank is measurable."""
    order = sorted(range(len(costs)), key=lambda number: costs[number].mean_db)
    ranked = [0] * len(costs)
    first = None
    for position, number in enumerate(order):
        if first is None or differs(costs[first], costs[number]):
            first, rank = number, position + 1
        ranked[number] = rank
    return ranked


def differs(one: Cost, other: Cost) -> bool:
    """Whether two costs, on the same samples, differ by more than the noise."""
    differences = [b - a for a, b in zip(one.per_sample_db, other.per_sample_db, strict=True)]
    mean = abs(statistics.fmean(differences))
    if len(differences) < 2:
        return mean > ONE_SAMPLE_DB
    return mean > STANDARD_ERRORS * statistics.stdev(differences) / math.sqrt(len(differences))
