"""What a target is: a table of what it accepts, and the few functions that reach it.

A target adds an op table, rewrites, and ``probe / emit / compile / read_back / run``; the stages never name one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.backend import (
    Artifact,
    BaselineCase,
    Compiled,
    DeviceCase,
    DeviceRead,
    DeviceSide,
    Measured,
    Probe,
    ReadBack,
    Sample,
)
from dovetail.op_support import Chain, OpSupport, Precision
from dovetail.storage import Plan

if TYPE_CHECKING:
    import onnx_ir as ir

    from dovetail.pass_record import Pass


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
