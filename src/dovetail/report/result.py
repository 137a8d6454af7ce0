"""The result of a run, as written to ``result.json``; documented in docs/result.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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

SCHEMA_VERSION = 4


@dataclass(frozen=True, slots=True)
class ArtifactInfo:
    """One file that the run wrote, by its path inside the run directory.

    ``made_by``: the component that wrote it, with its version. ``shipped``: it goes to the device. ``load``: what loads
    a shipped file, as code or a command.
    """

    name: str
    path: str
    sha256: str
    bytes: int
    made_by: str = ""
    shipped: bool = False
    load: str = ""


@dataclass(frozen=True, slots=True)
class TensorQuality:
    """How far one quantized tensor is from float in the simulation, as its consumers read it."""

    tensor: str
    original_name: str
    sqnr_db: float | None
    cosine: float | None
    max_abs_error: float


@dataclass(frozen=True, slots=True)
class TensorLoss:
    """What quantizing one tensor alone costs: the SQNR of the output of the consumer that loses most.

    ``sqnr_db``: that of the tensor itself in the simulation, in which the tensors before it are quantized too.
    """

    original_name: str
    consumer_sqnr_db: float
    sqnr_db: float | None = None


@dataclass(frozen=True, slots=True)
class TensorRange:
    """The values of one tensor in float on some calibration samples.

    ``counts``: how many are in each of the bins of equal width between ``low`` and ``high``.
    """

    tensor: str
    original_name: str
    low: float
    high: float
    counts: tuple[int, ...]
    samples: int


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator of the planned graph, and the tensors that it reads and writes, without constants."""

    node: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparisons:
    """Values per output of simulation, target and device against float or simulation; None if not measured.

    ``simulation_where_target_ran``, ``simulation_where_device_ran``: simulation against float on the samples that the
    target or the device ran.
    """

    simulation_vs_float: Mapping[str, float | None] = field(default_factory=dict)
    target_vs_float: Mapping[str, float | None] | None = None
    target_vs_simulation: Mapping[str, float | None] | None = None
    device_vs_float: Mapping[str, float | None] | None = None
    device_vs_simulation: Mapping[str, float | None] | None = None
    simulation_where_target_ran: Mapping[str, float | None] | None = None
    simulation_where_device_ran: Mapping[str, float | None] | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """SQNR per sample: mean, standard deviation and lowest figure over a number of samples."""

    mean_db: float
    std_db: float
    min_db: float
    samples: int


@dataclass(frozen=True, slots=True)
class SpreadComparisons:
    """The spread per float output, of simulation and target on the same samples; None if the target did not run."""

    simulation_vs_float: Mapping[str, Spread] = field(default_factory=dict)
    target_vs_float: Mapping[str, Spread] | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Every metric of a run, with the data it was measured on."""

    sqnr_db: Comparisons = field(default_factory=Comparisons)
    cosine: Comparisons = field(default_factory=Comparisons)
    max_abs_error: Comparisons = field(default_factory=Comparisons)
    top1_agreement: Comparisons = field(default_factory=Comparisons)
    equal_integers: Comparisons = field(default_factory=Comparisons)
    sqnr_db_per_sample: SpreadComparisons = field(default_factory=SpreadComparisons)
    data: DataInfo | None = None
    target_samples: int | None = None
    device_samples: int | None = None
    accuracy: Accuracy | None = None
    accuracy_emulated: Accuracy | None = None
    tensors: tuple[TensorQuality, ...] = ()
    losses: tuple[TensorLoss, ...] = ()
    ranges: tuple[TensorRange, ...] = ()
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
    """The result of a run."""

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
    options: Mapping[str, Any] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    tail: SplitPoint | None = None
    compilations: Mapping[str, int] = field(default_factory=dict)
    target_runs: Mapping[str, int] = field(default_factory=dict)
    operators: tuple[OperatorRow, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def failed(self) -> tuple[str, ...]:
        """The verdicts that failed."""
        return tuple(name for name, verdict in self.verdicts.items() if verdict.status is Status.FAIL)

    def to_json(self) -> bytes:
        """Return the content of ``result.json``."""
        return encode(self, indent=1)


def load_result(path: str | Path) -> Result:
    """Read a ``result.json`` of this or an older schema version; the error for a wrong field names it."""
    raw = read_document(Path(path), "result", SCHEMA_VERSION, UPGRADES)
    try:
        return convert(raw, Result)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from error
