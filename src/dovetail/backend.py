"""What goes to a backend and what comes back: files, what was compiled, read back and measured, what a device runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
    """Whether a backend can be reached from here, with its versions, or why not and what to install."""

    available: bool
    versions: Mapping[str, str]
    missing: str = ""


# The artifact that every target emits: the QDQ ONNX graph, which is also the simulation.
MODEL = "model"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file that a run made.

    ``made_by``: the vendor's component that wrote it, with its version. ``shipped``: a device is given it; what is made
    only to be looked at, or to be compiled, is not.
    """

    name: str
    path: Path
    made_by: str = ""
    shipped: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """A vendor's own estimate of latency and traffic, made at compile time: for comparing graphs, never a promise.

    Two estimates may only be compared when the same operators are without a cost.
    """

    lower_us: int
    mid_us: int
    upper_us: int
    ops_without_cost: int
    fill_bytes: int
    spill_bytes: int

    def ratio_to(self, other: Estimate) -> float | None:
        """This latency over the other one; None where they may not be compared."""
        return self.mid_us / other.mid_us if self.ops_without_cost == other.ops_without_cost else None


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a vendor's compiler says that one inference moves to and from memory."""

    read_bytes: int
    write_bytes: int
    fill_bytes: int
    spill_bytes: int


@dataclass(frozen=True, slots=True)
class UndelegatedOp:
    """One operation of a node that was not delegated to the backend, so that it runs in slower kernels, and why."""

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
    """Latency of several programs on this machine, by turns in one run: CPU time of one thread, by name.

    ``ratios``: each program over the one that ``baseline`` names, the median over the rounds.
    ``notes``: what must be known of the programs, such as that one is not made of the file as it is.
    """

    baseline: str
    median_us: Mapping[str, float]
    ratios: Mapping[str, float]
    rounds: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompileResult:
    """What the vendor compiler said and made; ``error`` is empty when it took the whole graph.

    ``not_estimated``: why there is no estimate or no traffic, where the target has such figures. ``finished``: the
    compiler was run to its end; where it was not, ``error`` is no refusal and says why. ``notes``: what must be known
    of what it made.
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
    """How a planned tensor came back from what was compiled."""

    MATCHED = "matched"
    ABSORBED = "absorbed"
    CHANGED = "changed"
    NOT_FOUND = "not_found"


@dataclass(frozen=True, slots=True)
class TensorReadBack:
    """One planned tensor (or edge) as it was read back.

    ``tensor``: the caller's name of it, or of what it was made from. ``detail``: into which operator it was absorbed,
    or what it was changed to. ``emitted``: its name in the emitted graph, of the integers or of what is read.
    """

    tensor: str
    outcome: Outcome
    detail: str = ""
    edge: Edge | None = None
    emitted: str = ""


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Everything that was read back, the evidence it was read from, and the line that could not be read, if any."""

    tensors: tuple[TensorReadBack, ...]
    evidence: str
    unparsed: str = ""


Sample = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class DeviceTensor:
    """An input or output of the shipped graph, as it goes to a device and comes back.

    ``file``: its name as a file, without suffix. ``scale`` and ``zero_point``: of one that is stored in integers.
    """

    name: str
    file: str
    shape: tuple[int, ...]
    dtype: str
    scale: float | None = None
    zero_point: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceCase:
    """What a device is to run: the tensors, and per sample the raw file of every input, by name."""

    inputs: tuple[DeviceTensor, ...]
    outputs: tuple[DeviceTensor, ...]
    samples: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class DeviceFiles:
    """What a target adds to the device folder: the files of the model, the one to run first, and texts by file name.

    One text is ``device_session.py``: ``open_model(path, backend)`` gives a function from inputs to outputs,
    ``emulated()`` says whether it was no device that ran, ``versions()`` what ran.
    """

    models: tuple[Path, ...]
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DeviceLatency:
    """Latency on a device, by the vendor's tool (``source``): the medians over ``runs``, without and with copying."""

    compute_us: float
    latency_us: float
    runs: int
    source: str


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What files say that a vendor's tool left beside the outputs; ``not_measured``: why there is no latency.

    ``read_back``: None where there is no such file. ``findings`` replace all that have one of the ``codes``.
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

    ``shapes`` are those that the caller pinned; ``samples`` those that calibration may use.
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
    """How what was compiled runs here, or why it does not (``run`` is None).

    ``samples``: how many it is given by default, because an emulator is slow; None for all. ``retry_samples``: how many
    before a failed comparison stands. ``notes``: what must be known to deploy it as it was run.
    """

    run: Callable[[CompileResult, Iterable[Sample]], Iterator[Sample]] | None
    why_not: str = ""
    samples: int | None = None
    retry_samples: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimator:
    """The compiler estimates latency (``CompileResult.estimate``); the programs whose estimates it is compared with."""

    baselines: tuple[Baseline, ...]


@dataclass(frozen=True, slots=True)
class Timer:
    """Measures the latency of programs by name, one of which is the baseline, on a sample, by turns in one run; or says
    in one sentence why there is none. The first of ``baselines`` is what the vendor's own way gives in float."""

    time: Callable[[Mapping[str, CompileResult], str, Sample], MeasuredLatency | str]
    baselines: tuple[Baseline, ...]


@dataclass(frozen=True, slots=True)
class DeviceKit:
    """A target's part of the folder that goes to a device; ``read``: what its tool left beside the outputs."""

    files: Callable[[CompileResult, DeviceCase], DeviceFiles]
    read: Callable[[Path, CompileResult, Plan], DeviceReport] | None = None


def _as_compiled(compiled: CompileResult, folder: Path) -> CompileResult:
    return compiled


@dataclass(frozen=True, slots=True)
class Backend:
    """How a vendor's tools are reached: ``probe``, ``emit``, ``compile`` and ``read_back``, and what else there is.

    ``package`` adds to a build what only the one that ships needs. ``float16_db``: how well float tensors are kept,
    where the target computes them in float16.
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
    float16_db: float | None = None

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """All programs that a fitted one can be compared with."""
        return tuple(b for each in (self.estimator, self.timer) if each is not None for b in each.baselines)
