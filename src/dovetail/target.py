"""What a target is: a table of what it accepts, over a small vocabulary, and the few functions that reach it.

A target adds an op table, rewrites, and ``probe / emit / compile / read_back / run``; the stages never name one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.encoding import FLOAT16, FLOAT32, Array, DType, Encoding, Granularity
from dovetail.finding import Finding
from dovetail.storage import Edge, Plan

if TYPE_CHECKING:
    import onnx_ir as ir

    from dovetail.pass_record import Pass

A8 = Encoding(DType.U8)
A16 = Encoding(DType.U16)
W8 = Encoding(DType.S8, symmetric=True, granularity=Granularity.AXIS)
B32 = Encoding(DType.S32, symmetric=True, granularity=Granularity.AXIS)
F32 = FLOAT32
F16 = FLOAT16


@dataclass(frozen=True, slots=True)
class Slot:
    """What one input or output of an operator takes.

    ``constant``: only constants may stand here. ``derived``: the numbers are not free but follow from the other
    operands (an int32 bias has input scale x weight scale).
    """

    encoding: Encoding
    constant: bool = False
    derived: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """One joint choice for the inputs and the outputs (all alike) of an operator.

    ``variadic``: the last input slot repeats; otherwise further inputs are none of the plan's business.
    ``when``: asked per node, the empty string for yes, else why this choice is not open there.
    """

    inputs: tuple[Slot, ...]
    output: Encoding
    variadic: bool = False
    when: Callable[[ir.Node], str] | None = None

    def slot(self, index: int) -> Slot | None:
        """What input ``index`` takes; None where it is left as it is."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.variadic else None


def const(encoding: Encoding) -> Slot:
    """A slot for a constant."""
    return Slot(encoding, constant=True)


def bias(encoding: Encoding) -> Slot:
    """A slot for a constant whose scale is input scale x weight scale."""
    return Slot(encoding, constant=True, derived=True)


def signature(*inputs: Encoding | Slot, out: Encoding) -> Signature:
    """A signature, written as the operands in order: ``signature(A8, const(W8), bias(B32), out=A8)``."""
    return Signature(tuple(s if isinstance(s, Slot) else Slot(s) for s in inputs), out)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Numbers that an operator's output always has on this target, by dtype."""

    dtype: DType
    scale: float
    zero_point: int


@dataclass(frozen=True, slots=True)
class OpSupport:
    """What a target accepts for one operator.

    ``shares``: the inputs whose stored bytes the outputs carry on unchanged (empty: none; None: all inputs).
    ``follows``: integer storage is not worth having here for its own sake: between float neighbours it stays float.
    ``unclipped``: what goes in and out keeps its whole range, whatever method finds the others: the largest scores are
    what a softmax is about.
    ``joins``: constants are stored with the numbers of the output, so that nothing has to be converted beside them.
    ``least_scale``: by dtype, what it reads with a smaller scale comes out wrong. ``scale_step``: by dtype, the scale
    of what it writes has to be a multiple of this.
    ``known_from``: the version and the way in which this is known; a fact without one is folklore.
    """

    signatures: tuple[Signature, ...]
    shares: tuple[int, ...] | None = ()
    follows: bool = False
    unclipped: bool = False
    fixed: tuple[Fixed, ...] = ()
    joins: bool = False
    least_scale: Mapping[DType, float] = field(default_factory=dict)
    scale_step: Mapping[DType, float] = field(default_factory=dict)
    known_from: str = ""


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators that the target runs as one: what is between them is never stored.

    The first one's signature speaks for all. ``bias``: the second operator adds a constant, one number per output
    channel, which takes the slot after the first one's inputs.
    """

    ops: tuple[str, ...]
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Precision:
    """What is wanted for activations and for weights; the op table says what is possible."""

    name: str
    activation: Encoding
    weight: Encoding


W8A8 = Precision("w8a8", A8, W8)
W8A16 = Precision("w8a16", A16, W8)
FP32 = Precision("fp32", F32, F32)


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
    """One file that a run made; ``made_by``: the vendor's component that wrote it, with its version."""

    name: str
    path: Path
    made_by: str = ""


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
class Outside:
    """One operation that the accelerated part of a program leaves to slower kernels, for a node, and why."""

    node: str
    operation: str
    why: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a program runs: how many parts were handed to the backend, with how many operations, and what was not."""

    parts: int
    inside: int
    outside: tuple[Outside, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """Latency of several programs on this machine, by turns in one run: CPU time of one thread, by name.

    ``ratios``: each program over the one that ``baseline`` names, the median over the rounds.
    """

    baseline: str
    median_us: Mapping[str, float]
    ratios: Mapping[str, float]
    rounds: int


@dataclass(frozen=True, slots=True)
class Compiled:
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
class ReadTensor:
    """One planned tensor (or edge) as it was read back: ``detail`` says into which operator it was absorbed, or what
    it was changed to."""

    tensor: str
    outcome: Outcome
    detail: str = ""
    edge: Edge | None = None


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Everything that was read back, the evidence it was read from, and the line that could not be read, if any."""

    tensors: tuple[ReadTensor, ...]
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
class DeviceSide:
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
class DeviceRead:
    """What files say that a vendor's tool left beside the outputs; ``not_measured``: why there is no latency.

    ``read_back``: None where there is no such file. ``findings`` take the place of all that have their ``code``.
    """

    read_back: ReadBack | None = None
    findings: tuple[Finding, ...] = ()
    code: str = ""
    notes: tuple[str, ...] = ()
    latency: DeviceLatency | None = None
    not_measured: str = ""


@dataclass(frozen=True, slots=True)
class BaselineCase:
    """What an estimate is compared with: ``fp16`` of the same float graph, or a ``naive`` export of the caller's file.

    ``shapes`` are those that the caller pinned; ``samples`` those that calibration may use.
    """

    name: str
    model: ir.Model
    original: Path
    precision: str
    samples: Iterable[Sample]
    shapes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Target:
    """A backend: what it accepts, how it is reached, and what is to be known of it."""

    name: str

    # What it accepts.
    ops: Mapping[str, OpSupport]
    precisions: Mapping[str, Precision]

    # How it is reached.
    probe: Callable[[], Probe]
    emit: Callable[[ir.Model, Plan, Path], tuple[Artifact, ...]]
    compile: Callable[[tuple[Artifact, ...], Path], Compiled]
    read_back: Callable[[Compiled, Plan], ReadBack]
    # None where what was compiled runs on the device only; ``no_run`` says so.
    run: Callable[[Compiled, Iterable[Sample]], Iterator[Sample]] | None = None
    no_run: str = ""
    # ``compile`` for what is looked into and not shipped, where that is less.
    trial: Callable[[tuple[Artifact, ...], Path], Compiled] | None = None

    # More of what it accepts.
    chains: tuple[Chain, ...] = ()
    # Tensors of a higher rank are refused.
    max_rank: int | None = None
    # Operators that it cannot run in any form -> why; they are cut off, with all that depends on them.
    outside: Mapping[str, str] = field(default_factory=dict)
    # The only operators that it can be given at all; None where its compiler decides.
    forms: frozenset[str] | None = None
    # Precisions that a caller may well ask for -> why they are not to be had.
    not_here: Mapping[str, str] = field(default_factory=dict)
    # Names of precisions that stand for several, of which the best on the caller's data is taken.
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # QDQ files for it may compute in float16.
    takes_float16: bool = False

    # How graphs for it are made.
    rewrites: tuple[Pass, ...] = ()
    # What is done to another tool's QDQ model before its numbers are read.
    given_rewrites: tuple[Pass, ...] = ()
    # Tensors are kept in float, and 8 bit stands on the edges into operators that compute in it: every consumer
    # converts for itself, equal conversions once.
    on_edges: bool = False
    # What has no integer form runs in float between dequantize and quantize, slower and less exact, but right.
    runs_float_between: bool = False
    # A merge that would share one range may run in float between integers, where that is much better.
    floats_merges: bool = False
    # The precision in which an operator that is computed wrongly is tried instead.
    island: Precision | None = None

    # How it is checked. ``float_db``: how well float tensors are kept, where that is less than in the float32
    # simulation (HTP computes them in float16).
    float_db: float | None = None
    # How many samples ``run`` is asked for by default (an emulator is slow), and before a failed comparison stands;
    # None for all.
    sample_limit: int | None = None
    retry_limit: int | None = None

    # What it is compared with. ``estimates``: the compiler estimates latency. ``baseline`` compiles the other model,
    # into a folder.
    estimates: bool = False
    baseline: Callable[[BaselineCase, Path], Compiled] | None = None
    # The latency of programs by name, one of which is the baseline, on a sample, by turns in one run; or one sentence
    # on why there is none.
    measure: Callable[[Mapping[str, Compiled], str, Sample], Measured | str] | None = None
    # What the fitted program is timed beside, made by ``baseline``: first what the vendor's own way gives for the
    # caller's file, in float.
    stock: tuple[str, ...] = ()

    # Its part of the folder that goes to a device, where there is one but this machine; and what its tool left there.
    device: Callable[[Compiled, DeviceCase], DeviceSide] | None = None
    read_device: Callable[[Path, Compiled, Plan], DeviceRead] | None = None

    # For people: what must be known to deploy, repeated in every result; what may stand behind the colon of its name;
    # what ``--option`` takes.
    notes: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    option_keys: tuple[str, ...] = ()

    def try_out(self, artifacts: tuple[Artifact, ...], folder: Path) -> Compiled:
        """Compile what is not shipped."""
        return (self.trial or self.compile)(artifacts, folder)
