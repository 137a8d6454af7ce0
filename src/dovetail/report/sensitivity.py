"""The result of ``dovetail sensitivity``, as JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dovetail.document import convert, encode, read_document
from dovetail.errors import InputError
from dovetail.finding import Finding
from dovetail.rundir import SENSITIVITY
from dovetail.stats import DataInfo
from dovetail.trials.sensitivity.subjects import Level, Part

SCHEMA_VERSION = 1
JSON, CSV = SENSITIVITY, "sensitivity.csv"
# What rows are ranked by without a metric.
SQNR = "sqnr_db"
_COLUMNS = (
    "level",
    "rank",
    "name",
    "op_type",
    "part",
    "whole",
    "sqnr_db",
    "deviation_db",
    "noise",
    "output",
    "estimated",
    "drop",
)


@dataclass(frozen=True, slots=True)
class SensitivityRow:
    """What quantizing one subject alone costs, with everything else in float.

    ``sqnr_db``: of ``output``, the float output that loses most, mean over samples; ``deviation_db``: standard
    deviation. ``noise``: relative to that of the whole quantized model. ``whole``: this is all that is quantized of the
    subject, and not one part of two. ``rank``: 1 costs most, among the whole subjects of one level, or among its
    weights, or its activations; equal where the samples do not tell two rows apart. ``drop``: of the value that rows
    are ranked by, if that is one of the caller's metric; None without a metric, or if it is not finite. ``estimated``:
    SQNR to first order, not measured. ``figures``: the caller's metric. ``unit``: the operator's name in the rewritten
    graph. ``keep``: the tensors that ``--keep`` takes to keep the operator in another precision.
    """

    level: Level
    part: Part
    name: str
    op_type: str
    output: str
    sqnr_db: float
    deviation_db: float
    noise: float
    whole: bool
    rank: int
    drop: float | None = None
    estimated: bool = False
    figures: Mapping[str, float | None] = field(default_factory=dict)
    unit: str = ""
    keep: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SensitivityResult:
    """The sensitivity of one model on one target at one precision.

    ``data``: the samples that SQNR was measured on; ``held_out``: whether they are not those of calibration.
    ``ranked_by``: ``sqnr_db``, or the first value of the caller's metric. ``float_figures``: the metric in float.
    ``lower_is_better``: the values of it that are errors. ``metric_samples``: on how many held-out samples it was
    computed.
    """

    model: str
    target: str
    precision: str
    data: DataInfo
    held_out: bool
    rows: tuple[SensitivityRow, ...]
    ranked_by: str = SQNR
    float_figures: Mapping[str, float | None] = field(default_factory=dict)
    lower_is_better: tuple[str, ...] = ()
    metric_samples: int | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def at(self, level: Level) -> tuple[SensitivityRow, ...]:
        """The rows of one level, in graph order."""
        return tuple(row for row in self.rows if row.level is level)

    def to_json(self) -> bytes:
        """Return the content of ``sensitivity.json``."""
        return encode(self, indent=1)

    def to_csv(self) -> bytes:
        """Return the rows as CSV, one column per value of the metric."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        metrics = list(self.float_figures)
        writer.writerow([*_COLUMNS, *metrics])
        for row in self.rows:
            values = [f"{row.sqnr_db:.3f}", f"{row.deviation_db:.3f}", f"{row.noise:.5g}", row.output]
            whole, is_estimated = ("yes" if flag else "no" for flag in (row.whole, row.estimated))
            figures = ["" if value is None else value for value in (row.drop, *map(row.figures.get, metrics))]
            subject = [row.level, row.rank, row.name, row.op_type, row.part, whole]
            writer.writerow([*subject, *values, is_estimated, *figures])
        return text.getvalue().encode()


def load_sensitivity(path: str | Path) -> SensitivityResult:
    """Read a ``sensitivity.json``."""
    raw = read_document(Path(path), "sensitivity result", SCHEMA_VERSION)
    try:
        return convert(raw, SensitivityResult)
    except msgspec.ValidationError as error:
        raise InputError(f"{path} is not a sensitivity result ({error})") from error
