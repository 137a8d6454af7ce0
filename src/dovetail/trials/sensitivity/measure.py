"""Measure what quantizing each subject alone costs, exactly: one session per segment, with a switch per element."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dovetail.backend import Sample
from dovetail.trials.sensitivity.subjects import Subject
from dovetail.verify.compare import compare_runs
from dovetail.verify.segmented import SegmentedSimulation
from dovetail.verify.verdicts import MAX_SQNR_DB, bounded_db

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Cost:
    """The SQNR against float of every sample, of the output that loses most; NaN counts as the lowest value."""

    output: str
    per_sample_db: tuple[float, ...]

    @property
    def mean_db(self) -> float:
        return statistics.fmean(self.per_sample_db)

    @property
    def deviation_db(self) -> float:
        return statistics.stdev(self.per_sample_db) if len(self.per_sample_db) > 1 else 0.0


def measure(
    simulation: SegmentedSimulation,
    samples: Iterable[Sample],
    subjects: Sequence[Subject],
    ranked: Mapping[str, int],
    per_call: int = 1,
    progress: Progress = lambda done, total: None,
) -> list[Cost]:
    """The cost of every subject; samples are run one by one, so that only one is in memory.

    ``ranked``, ``per_call``: see ``compare_runs``.
    """
    figures: list[dict[str, list[float]]] = [{} for _ in subjects]
    for done, sample in enumerate(samples):
        exact = simulation.float_pass(sample)
        for number, subject in enumerate(subjects):
            progress(done * len(subjects) + number, None)
            outputs = simulation.outputs(exact, subject.elements)
            add_sample(figures[number], exact.outputs, outputs, ranked, per_call)
    return [cost_of(per_output) for per_output in figures]


def add_sample(
    figures: dict[str, list[float]], exact: Sample, outputs: Sample, ranked: Mapping[str, int], per_call: int = 1
) -> None:
    """Add the SQNR of each float output of one call."""
    for name, values in compare_runs([exact], [outputs], ranked, per_call=per_call).per_sample.items():
        figures.setdefault(name, []).extend(-MAX_SQNR_DB if math.isnan(db) else bounded_db(db) for db in values)


def cost_of(figures: Mapping[str, Sequence[float]]) -> Cost:
    """The cost at the output with the lowest mean; without a float output there is none."""
    if not figures:
        return Cost("", (MAX_SQNR_DB,))
    worst = min(figures, key=lambda name: statistics.fmean(figures[name]))
    return Cost(worst, tuple(figures[worst]))
