"""What a search for a mixed precision aims at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

# Plans that are better than this need not be told apart: no accuracy depends on it.
ENOUGH_DB = 40.0
# Without a goal, the cheapest plan that is at most this much below the best one that was found.
WITHIN_DB = 1.0
# With a budget, the best plan within it: the cheapest of those that differ by no more than this.
SAME_DB = 0.1
# By how much a plan must exceed the caller's limit: it is judged on other samples than those that chose it.
MARGIN_DB = 0.5


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits that the caller set; None where nothing is limited.

    ``min_sqnr_db``: of every output. ``max_drop``, ``max_drop_of``: of the metric. ``max_latency``: relative to the
    first baseline. ``max_float``: fraction of MACs in float.
    """

    min_sqnr_db: float | None = None
    max_drop: float | None = None
    max_drop_of: Mapping[str, float] = field(default_factory=dict)
    max_latency: float | None = None
    max_float: float | None = None

    @property
    def limits_metric(self) -> bool:
        """Whether the caller limits how much the metric may drop."""
        return self.max_drop is not None or bool(self.max_drop_of)

    @property
    def limits_accuracy(self) -> bool:
        """Whether the caller says how good is good enough."""
        return self.min_sqnr_db is not None or self.limits_metric

    @property
    def limits_cost(self) -> bool:
        """Whether the caller says how much a plan may cost."""
        return self.max_latency is not None or self.max_float is not None

    def drop_of(self, name: str) -> float:
        """How much worse a value of the metric may get."""
        return self.max_drop_of.get(name, math.inf if self.max_drop is None else self.max_drop)

    def __str__(self) -> str:
        limits = []
        if self.min_sqnr_db is not None:
            limits.append(f"SQNR >= {self.min_sqnr_db:g} dB")
        if self.max_drop is not None:
            limits.append(f"metric drops by at most {self.max_drop:g}")
        limits += [f"{name} drops by at most {drop:g}" for name, drop in self.max_drop_of.items()]
        if self.max_latency is not None:
            limits.append(f"latency <= {self.max_latency:g} of the baseline")
        if self.max_float is not None:
            limits.append(f"at most {self.max_float:.0%} of MACs in float")
        if not self.limits_cost and not self.limits_accuracy:
            limits.append(f"SQNR within {WITHIN_DB:g} dB of the best, where more than {ENOUGH_DB:g} dB do not count")
        return ", ".join(limits)
