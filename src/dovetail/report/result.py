"""Everything that a run showed, as it stands in ``result.json``; documented in docs/result.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dovetail.backend import DeviceLatency, Estimate, MeasuredLatency, Placement, TensorReadBack, Traffic
from dovetail.document import convert, encode, read_document
from dovetail.errors import InputError
from dovetail.finding import Finding, Status, Thresholds, Verdict
from dovetail.model.split import SplitPoint
from dovetail.pass_record import PassRecord
from dovetail.plan.rows import PlanRow
from dovetail.report.upgrade import UPGRADES
from dovetail.stats import DataInfo
from dovetail.trials.decision import Decision
from dovetail.verify.metric import Accuracy

SCHEMA_VERSION = 3


@dataclass(frozen=True, slots=True)
class ArtifactInfo:
    """One file that the run made, by its path inside the run directory.

    ``made_by``: what wrote it, with its version. ``shipped``: a device is given it.
    """

    name: str
    path: str
    sha256: str
    bytes: int
    made_by: str = ""
    shipped: bool = False


@dataclass(frozen=True, slots=True)
class TensorQuality:
    """How far one stored tensor is from float, as its readers see it in the simulation."""

    tensor: str
    original_name: str
    sqnr_db: float | None
    cosine: float | None
    max_abs_error: float


@dataclass(frozen=True, slots=True)
class Comparisons:
    """Per output: simulation, target or device against float, or against simulation; None where not measured."""

    simulation_vs_float: Mapping[str, float | None] = field(default_factory=dict)
    target_vs_float: Mapping[str, float | None] | None = None
    target_vs_simulation: Mapping[str, float | None] | None = None
    device_vs_float: Mapping[str, float | None] | None = None
    device_vs_simulation: Mapping[str, float | None] | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Every figure that was measured, with the data it was measured on."""

    sqnr_db: Comparisons = field(default_factory=Comparisons)
    cosine: Comparisons = field(default_factory=Comparisons)
    max_abs_error: Comparisons = field(default_factory=Comparisons)
    top1_agreement: Comparisons = field(default_factory=Comparisons)
    data: DataInfo | None = None
    target_samples: int | None = None
    accuracy: Accuracy | None = None
    accuracy_emulated: Accuracy | None = None
    tensors: tuple[TensorQuality, ...] = ()
    size_bytes: Mapping[str, int] = field(default_factory=dict)
    latency_estimate_us: Mapping[str, Estimate] = field(default_factory=dict)
    traffic_bytes: Mapping[str, Traffic] = field(default_factory=dict)
    not_estimated: Mapping[str, str] = field(default_factory=dict)
    placement: Placement | None = None
    latency_measured: MeasuredLatency | None = None
    not_measured: str = ""
    latency_device: DeviceLatency | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that a run showed."""

    target: str
    precision: str
    model: str
    model_sha256: str
    calibration: DataInfo | None
    verdicts: Mapping[str, Verdict]
    thresholds: Thresholds
    metrics: Metrics
    plan: tuple[PlanRow, ...]
    read_back: tuple[TensorReadBack, ...]
    findings: tuple[Finding, ...]
    passes: tuple[PassRecord, ...]
    artifacts: tuple[ArtifactInfo, ...]
    versions: Mapping[str, str]
    timings_s: Mapping[str, float]
    run: str
    notes: tuple[str, ...] = ()
    option: Mapping[str, str] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    tail: SplitPoint | None = None
    compilations: Mapping[str, int] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def failed(self) -> tuple[str, ...]:
        """The verdicts that failed."""
        return tuple(name for name, verdict in self.verdicts.items() if verdict.status is Status.FAIL)

    def to_json(self) -> bytes:
        """The document as it is written."""
        return encode(self, indent=1)


def load_result(path: str | Path) -> Result:
    """Read a ``result.json``, also one of an older schema version; a wrong field is refused by name."""
    raw = read_document(Path(path), "result", SCHEMA_VERSION, UPGRADES)
    try:
        return convert(raw, Result)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from error
