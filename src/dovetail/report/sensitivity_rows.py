"""The rows of a sensitivity result: what each subject costs, and its rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.report.sensitivity import SensitivityRow
from dovetail.trials.sensitivity.measure import Cost
from dovetail.trials.sensitivity.rank import drop_of, ranks, ranks_by_drop, resolution_of
from dovetail.trials.sensitivity.subjects import Level, Part, Subject


@dataclass(frozen=True, slots=True)
class MetricFigures:
    """The caller's metric on ``samples`` held-out samples: in float, and with each subject quantized."""

    in_float: Mapping[str, float]
    quantized: Sequence[Mapping[str, float]]
    lower_is_better: tuple[str, ...]
    samples: int

    @property
    def ranked_by(self) -> str:
        """The value that rows are ranked by: the first one that the metric returns."""
        return next(iter(self.in_float))

    def drop(self, number: int) -> float:
        """By how much that value is worse than in float with one subject quantized; NaN if it is missing."""
        name = self.ranked_by
        value = self.quantized[number].get(name, math.nan)
        return drop_of(value, self.in_float[name], lower_is_better=name in self.lower_is_better)


def rows_of(
    subjects: Sequence[Subject], costs: Sequence[Cost], estimated: frozenset[int], figures: MetricFigures | None
) -> tuple[SensitivityRow, ...]:
    """One row per subject."""
    whole_db = costs[0].mean_db
    compared: dict[tuple[Level, Part | None], list[int]] = {}  # rows that are ranked together
    for number, subject in enumerate(subjects):
        compared.setdefault((subject.level, None if subject.whole else subject.part), []).append(number)
    places: dict[int, int] = {}
    for numbers in compared.values():
        places |= dict(zip(numbers, _ranks(numbers, costs, figures), strict=True))
    return tuple(
        SensitivityRow(
            level=subject.level,
            part=subject.part,
            name=subject.name,
            op_type=subject.op_type,
            output=cost.output,
            sqnr_db=cost.mean_db,
            deviation_db=cost.deviation_db,
            noise=10 ** ((whole_db - cost.mean_db) / 10),
            whole=subject.whole,
            rank=places[number],
            drop=None if figures is None else finite(figures.drop(number)),
            estimated=number in estimated,
            figures={} if figures is None else {k: finite(v) for k, v in figures.quantized[number].items()},
            unit=subject.unit,
            keep=subject.tensors,
        )
        for number, (subject, cost) in enumerate(zip(subjects, costs, strict=True))
    )


def _ranks(numbers: Sequence[int], costs: Sequence[Cost], figures: MetricFigures | None) -> list[int]:
    """By the drop of the metric if there is one, else by SQNR."""
    chosen = [costs[number] for number in numbers]
    if figures is None:
        return ranks(chosen)
    resolution = resolution_of(figures.in_float, figures.ranked_by, figures.samples)
    return ranks_by_drop([figures.drop(number) for number in numbers], chosen, resolution)


def finite(value: float) -> float | None:
    """A value as JSON has it: None for NaN and infinity."""
    return value if math.isfinite(value) else None
