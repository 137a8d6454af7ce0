"""The calibrate stage: one pass over the samples, observing only the tensors that planning needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.calibrate.data import Data, describe
from dovetail.encoding import Array
from dovetail.errors import InputError
from dovetail.model.observe import ObservedRun
from dovetail.model.origin import origin_of
from dovetail.model.place import named
from dovetail.numerics.histogram import BINS, histogram_of
from dovetail.stats import Stats, TensorStats

Progress = Callable[[int, int | None], None]


def quiet(done: int, total: int | None) -> None:
    """A progress callback that does nothing."""


@dataclass(slots=True)
class _RunningStats:
    """The statistics of one tensor so far."""

    low: float
    high: float
    counts: Array | None

    def add(self, array: Array, name: str, sample: int) -> None:
        low, high = float(array.min()), float(array.max())
        if not np.isfinite(low) or not np.isfinite(high):
            kind = "NaN" if np.isnan(low) or np.isnan(high) else "infinity"
            raise InputError(f"activation {name} contains {kind} on sample {sample}: the float model must be finite")
        self.low, self.high = min(self.low, low), max(self.high, high)
        if self.counts is not None:
            self.counts += histogram_of(array)


def collect(
    model: ir.Model, names: Sequence[str], data: Data, *, workdir: Path, histograms: bool, progress: Progress = quiet
) -> Stats:
    """Run the float model on every sample and observe the named tensors; memory does not grow with the samples."""
    runner = ObservedRun(model, names, workdir)
    originals = {name: _described(value) for name, value in runner.values.items()}
    running = {
        name: _RunningStats(np.inf, -np.inf, np.zeros(BINS, np.int64) if histograms else None) for name in runner.values
    }
    used = describe(data, model)
    for number, sample in enumerate(used.samples()):
        for name, array in runner.run(sample):
            if array.size:
                running[name].add(array, originals[name], number)
        progress(number + 1, data.count)
    tensors = {name: TensorStats(s.low, s.high, s.counts) for name, s in running.items() if s.low <= s.high}
    return Stats(tensors, used.info(), tuple(used.digests))


def _described(value: ir.Value) -> str:
    """A tensor by its original name, with the operator that produced it."""
    node = value.producer()
    written = "" if node is None else f" (output of {named(node)})"
    return f"{origin_of(value).name!r}{written}"
