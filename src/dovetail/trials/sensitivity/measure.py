"""Measure what quantizing each subject alone costs, exactly: one session per segment, with a switch per element."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dovetail.backend import Sample
from dovetail.qdq.quantized_io import RunSamples
from dovetail.trials.sensitivity.subjects import Subject
from dovetail.verify.compare import compare_runs
from dovetail.verify.segmented import SegmentedSimulation
from dovetail.verify.verdicts import MAX_SQNR_DB, lowest_if_nan_db

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


@dataclass(frozen=True, slots=True)
class Calls:
    """The samples that costs are measured on: ``count`` calls of the model with ``per_call`` samples each.

    They are read again for every use, so that only one is in memory. ``ranked``: see ``compare_runs``.
    """

    read: Callable[[], Iterable[Sample]]
    count: int
    per_call: int = 1
    ranked: Mapping[str, int] | None = None


def measure(
    simulation: SegmentedSimulation,
    calls: Calls,
    subjects: Sequence[Subject],
    progress: Progress = lambda done, total: None,
) -> list[Cost]:
    """The cost of every subject."""
    figures: list[dict[str, list[float]]] = [{} for _ in subjects]
    for done, sample in enumerate(calls.read()):
        exact = simulation.float_activations(sample)
        for number, subject in enumerate(subjects):
            progress(done * len(subjects) + number, calls.count * len(subjects))
            add_call(figures[number], exact.outputs, simulation.outputs(exact, subject.elements), calls)
    return [cost_of(per_output) for per_output in figures]


def measure_run(simulation: SegmentedSimulation, calls: Calls, run: RunSamples) -> Cost:
    """The cost of another program of the same model, for example the emitted graph."""
    figures: dict[str, list[float]] = {}
    for sample in calls.read():
        exact = simulation.float_activations(sample)
        for outputs in run([sample]):
            add_call(figures, exact.outputs, outputs, calls)
    return cost_of(figures)


def add_call(figures: dict[str, list[float]], exact: Sample, outputs: Sample, calls: Calls) -> None:
    """Add the SQNR of each float output of one call, per sample.

    After a TopK only the rows that both selected count; if most rows were selected differently, all rows.
    """
    agreement = compare_runs([exact], [outputs], calls.ranked, per_call=calls.per_call)
    for name, per_sample in agreement.per_sample.items():
        rows = agreement.rows.get(name)
        values = per_sample if rows is None or rows.mostly_alike else (agreement.outputs[name].sqnr_db,)
        if rows is None and exact[name].shape[:1] == (calls.per_call,) and len(values) == 1:
            values *= calls.per_call  # an output of another shape, which is wrong for every sample
        figures.setdefault(name, []).extend(map(lowest_if_nan_db, values))


def cost_of(figures: Mapping[str, Sequence[float]]) -> Cost:
    """The cost at the output with the lowest mean; without a float output there is none."""
    if not figures:
        return Cost("", (MAX_SQNR_DB,))
    worst = min(figures, key=lambda name: statistics.fmean(figures[name]))
    return Cost(worst, tuple(figures[worst]))
