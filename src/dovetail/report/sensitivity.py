"""The result of ``dovetail sensitivity``, as JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.document import convert, encode, read_document
from dovetail.finding import Finding
from dovetail.stats import DataInfo
from dovetail.trials.sensitivity.subjects import Level, Part

SCHEMA_VERSION = 1
JSON, CSV = "sensitivity.json", "sensitivity.csv"


@dataclass(frozen=True, slots=True)
class SensitivityRow:
    """What quantizing one subject alone costs, with everything else in float.

    ``sqnr_db``: of ``output``, the float output that loses most, mean over samples; ``deviation_db``: standard
    deviation. ``share``: its noise relative to that of the whole quantized model. ``rank``: 1 costs most; equal where
    the samples do not tell two rows of one level apart. ``estimated``: to first order, not measured. ``figures``: the
    caller's metric. ``keep``: what ``--keep`` takes to keep it in another precision.
    """

    level: Level
    part: Part
    name: str
    op_type: str
    output: str
    sqnr_db: float
    deviation_db: float
    share: float
    rank: int
    estimated: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)
    keep: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SensitivityResult:
    """The sensitivity of one model on one target at one precision; ``data``: the samples that it was measured on.

    ``float_figures``: the caller's metric in float. ``lower_is_better``: the values of it that are errors.
    """

    model: str
    target: str
    precision: str
    data: DataInfo
    rows: tuple[SensitivityRow, ...]
    float_figures: Mapping[str, float] = field(default_factory=dict)
    lower_is_better: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def at(self, level: Level) -> tuple[SensitivityRow, ...]:
        """The rows of one level."""
        return tuple(row for row in self.rows if row.level is level)

    def to_json(self) -> bytes:
        """Return the content of ``sensitivity.json``."""
        return encode(self, indent=1)

    def to_csv(self) -> bytes:
        """Return the rows as CSV, one column per value of the metric."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        metrics = list(self.float_figures)
        columns = [
            "level",
            "rank",
            "name",
            "op_type",
            "part",
            "sqnr_db",
            "deviation_db",
            "share",
            "output",
            "estimated",
        ]
        writer.writerow([*columns, *metrics])
        for row in self.rows:
            values = [f"{row.sqnr_db:.3f}", f"{row.deviation_db:.3f}", f"{row.share:.5f}", row.output]
            is_estimated = "yes" if row.estimated else "no"
            figures = [row.figures.get(name, "") for name in metrics]
            writer.writerow([row.level, row.rank, row.name, row.op_type, row.part, *values, is_estimated, *figures])
        return text.getvalue().encode()


def load_sensitivity(path: Path) -> SensitivityResult:
    """Read a ``sensitivity.json``."""
    return convert(read_document(path, "sensitivity result", SCHEMA_VERSION), SensitivityResult)
