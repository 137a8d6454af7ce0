"""The records exchanged with a backend: files, compile results, read-back, measurements, and what a device runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.edge import Edge
from dovetail.encoding import Array
from dovetail.finding import Finding
from dovetail.storage import Plan

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a backend is available on this machine: its versions, or what is missing and how to install it."""

    available: bool
    versions: Mapping[str, str]
    missing: str = ""


# The artifact that every target emits: the QDQ ONNX graph, which is also the simulation.
MODEL = "model"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file that a run wrote.

    ``made_by``: the vendor's component that wrote it, with its version. ``shipped``: it goes to the device; compiler
    input and files made for inspection do not. ``load``: what loads a shipped file, as code or a command.
    """

    name: str
    path: Path
    made_by: str = ""
    shipped: bool = False
    load: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A vendor's compile-time estimate of latency and memory traffic: for comparing graphs, not a measurement.

    Two estimates are comparable only if they leave the same number of operators without a cost.
    """

    lower_us: int
    mid_us: int
    upper_us: int
    ops_without_cost: int
    fill_bytes: int
    spill_bytes: int

    def ratio_to(self, other: Estimate) -> float | None:
        """Return this latency divided by the other; None if the two are not comparable."""
        return self.mid_us / other.mid_us if self.ops_without_cost == other.ops_without_cost else None


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes that one inference moves to and from memory, as reported by the vendor's compiler."""

    read_bytes: int
    write_bytes: int
    fill_bytes: int
    spill_bytes: int


@dataclass(frozen=True, slots=True)
class UndelegatedOp:
    """One operation of a node that was not delegated to the backend and runs in slower kernels, with the reason."""

    node: str
    operation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a program runs: how many partitions and operations were delegated to the backend, and what was not."""

    partitions: int
    delegated: int
    undelegated: tuple[UndelegatedOp, ...]


@dataclass(frozen=True, slots=True)
class MeasuredLatency:
    """Latency of several programs on this machine, by name: CPU time of one thread, alternately, in one process.

    ``ratios``: latency relative to the program that ``baseline`` names, as the median over the rounds.
    ``notes``: caveats, such as a program that is not built from the caller's file as it is.
    """

    baseline: str
    median_us: Mapping[str, float]
    ratios: Mapping[str, float]
    rounds: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompileResult:
    """What the vendor's compiler reported and produced; ``error`` is empty if it accepted the whole graph.

    ``not_estimated``: why an estimate or a traffic value is missing, on a target that has them. ``finished``: the
    compiler ran to the end; if it did not, ``error`` says why and does not mean that the graph was rejected.
    ``notes``: caveats about what it produced.
    """

    artifacts: tuple[Artifact, ...] = ()
    error: str = ""
    log: str = ""
    findings: tuple[Finding, ...] = ()
    estimate: Estimate | None = None
    traffic: Traffic | None = None
    not_estimated: str = ""
    finished: bool = True
    notes: tuple[str, ...] = ()
    placement: Placement | None = None


class Outcome(StrEnum):
    """How a planned tensor was found in the compiled graph."""

    MATCHED = "matched"
    ABSORBED = "absorbed"
    CHANGED = "changed"
    NOT_FOUND = "not_found"


def changed(planned: object, found: object, where: str = "") -> tuple[Outcome, str]:
    """The outcome and the detail of a tensor that is not as planned: both states in the same words, then the place."""
    return Outcome.CHANGED, f"planned {planned}, found {found}{where and f': {where}'}"


@dataclass(frozen=True, slots=True)
class TensorReadBack:
    """One planned tensor (or edge) as it was read back from the compiled graph.

    ``tensor``: its name in the caller's model, or that of the tensor it was derived from. ``detail``: the operator that
    absorbed it, or what it was changed to. ``emitted``: its name in the emitted graph, that of the quantized tensor or
    of the one that consumers read.
    """

    tensor: str
    outcome: Outcome
    detail: str = ""
    edge: Edge | None = None
    emitted: str = ""


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Everything that was read back, the evidence it was read from, and the line that could not be parsed, if any."""

    tensors: tuple[TensorReadBack, ...]
    evidence: str
    unparsed: str = ""


Sample = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class DeviceTensor:
    """An input or output of the shipped graph, as it is exchanged with a device.

    ``file``: its file name, without suffix. ``scale`` and ``zero_point``: set if it is quantized.
    """

    name: str
    file: str
    shape: tuple[int, ...]
    dtype: str
    scale: float | None = None
    zero_point: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceCase:
    """What a device runs: the input and output tensors, and per sample the raw file of every input, by input name."""

    inputs: tuple[DeviceTensor, ...]
    outputs: tuple[DeviceTensor, ...]
    samples: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class DeviceFiles:
    """What a target adds to the device folder: model files, of which the first one is run, and text files by name.

    One text file is ``device_session.py``: ``open_model(path, backend)`` returns a function from inputs to outputs,
    ``emulated()`` tells whether an emulator ran in place of a device, ``versions()`` returns the versions that ran.
    """

    models: tuple[Path, ...]
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DeviceLatency:
    """Median latency on a device over ``runs``, by the vendor's tool (``source``): compute only, and with copies."""

    compute_us: float
    latency_us: float
    runs: int
    source: str


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The content of the files that a vendor's tool wrote next to the outputs.

    ``read_back``: None if the tool wrote no layer information. ``findings`` replace all earlier ones with one of the
    ``codes``. ``not_measured``: why there is no latency.
    """

    read_back: ReadBack | None = None
    findings: tuple[Finding, ...] = ()
    codes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    latency: DeviceLatency | None = None
    not_measured: str = ""


@dataclass(frozen=True, slots=True)
class BaselineCase:
    """What a baseline is built from: the float graph that was fitted, and the caller's file.

    ``shapes``: those that the caller pinned. ``samples``: those that the baseline may be calibrated on.
    """

    model: ir.Model
    original: Path
    precision: str
    samples: Iterable[Sample]
    shapes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Baseline:
    """Another program that the fitted one is compared with, compiled into a folder of its own."""

    name: str
    build: Callable[[BaselineCase, Path], CompileResult]


@dataclass(frozen=True, slots=True)
class Runner:
    """How the compiled graph runs on this machine, or why it cannot (``run`` is None).

    ``samples``: how many to run by default, because an emulator is slow; None for all. ``retry_samples``: how many to
    run before a failed comparison is accepted. ``notes``: settings that a deployment must use as well.
    """

    run: Callable[[CompileResult, Iterable[Sample]], Iterator[Sample]] | None
    why_not: str = ""
    samples: int | None = None
    retry_samples: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimator:
    """The compiler estimates latency (``CompileResult.estimate``); ``baselines`` are compared by estimate."""

    baselines: tuple[Baseline, ...]


@dataclass(frozen=True, slots=True)
class TimedProgram:
    """A program whose latency is measured, and the sample that it is run on: quantized if its inputs are."""

    compiled: CompileResult
    sample: Sample


@dataclass(frozen=True, slots=True)
class Timer:
    """How latency is measured on this machine.

    ``time`` takes programs by name, and the name of the baseline among them, and measures all programs alternately, in
    one process; it returns a sentence if that is not possible. The first of ``baselines`` is the float program that the
    vendor's own flow produces. ``by_default``: every run is compared with it, not only if latency is limited or a
    baseline named.
    """

    time: Callable[[Mapping[str, TimedProgram], str], MeasuredLatency | str]
    baselines: tuple[Baseline, ...]
    by_default: bool = True


@dataclass(frozen=True, slots=True)
class DeviceKit:
    """A target's part of the device folder; ``read`` parses what the vendor's tool wrote next to the outputs.

    ``opens_onnx``: its session opens the emitted ONNX file too, which the vendor's runtime then compiles.
    """

    files: Callable[[CompileResult, DeviceCase], DeviceFiles]
    read: Callable[[Path, CompileResult, Plan], DeviceReport] | None = None
    opens_onnx: bool = False


@dataclass(frozen=True, slots=True)
class ConverterReport:
    """What files that the vendor's own converter wrote say about a plan; ``notes``: what else they say."""

    read_back: ReadBack | None = None
    notes: tuple[str, ...] = ()


def _as_compiled(compiled: CompileResult, folder: Path) -> CompileResult:
    return compiled


@dataclass(frozen=True, slots=True)
class Backend:
    """How a vendor's tools are called: ``probe``, ``emit``, ``compile`` and ``read_back``, and optional capabilities.

    ``package`` adds to a build what only the shipped one needs. ``converted`` reads, for an emitted model, the files
    that the vendor's own converter wrote from it. ``for_file``: the backend for one model file of the caller, where the
    vendor's tools read that file. ``float16_db``: the SQNR that float tensors can reach
    on a target that computes them in float16. ``no_latency``: where latency is known, if not
    for this target.
    """

    probe: Callable[[], Probe]
    emit: Callable[[ir.Model, Plan, Path], tuple[Artifact, ...]]
    compile: Callable[[tuple[Artifact, ...], Path], CompileResult]
    read_back: Callable[[CompileResult, Plan], ReadBack]
    runner: Runner
    package: Callable[[CompileResult, Path], CompileResult] = _as_compiled
    estimator: Estimator | None = None
    timer: Timer | None = None
    device: DeviceKit | None = None
    converted: Callable[[Path, Sequence[Path], Plan], ConverterReport] | None = None
    for_file: Callable[[Path], Backend] | None = None
    float16_db: float | None = None
    no_latency: str = ""

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """All programs that a fitted one can be compared with."""
        capabilities = (self.estimator, self.timer)
        return tuple(b for capability in capabilities if capability is not None for b in capability.baselines)
