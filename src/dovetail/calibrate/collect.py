"""The calibrate stage: one pass over the samples, watching only the tensors that the plan can need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.calibrate.data import Data, describe
from dovetail.encoding import Array
from dovetail.errors import InputError
from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of
from dovetail.model.session import Mode, open_session
from dovetail.model.write import write
from dovetail.numerics.histogram import BINS, histogram_of
from dovetail.stats import Stats, TensorStats
from dovetail.target import Sample

Progress = Callable[[int, int | None], None]


def quiet(done: int, total: int | None) -> None:
    """A progress that says nothing."""


@dataclass(slots=True)
class _Seen:
    """What has been seen of one tensor so far."""

    low: float
    high: float
    counts: Array | None

    def add(self, array: Array, name: str, sample: int) -> None:
        low, high = float(array.min()), float(array.max())
        if not np.isfinite(low) or not np.isfinite(high):
            kind = "NaN" if np.isnan(low) or np.isnan(high) else "infinity"
            raise InputError(f"activation {name!r} holds {kind} on sample {sample}: a float model must be finite")
        self.low, self.high = min(self.low, low), max(self.high, high)
        if self.counts is not None:
            self.counts += histogram_of(array)


def collect(
    model: ir.Model, names: Sequence[str], data: Data, *, workdir: Path, histograms: bool, progress: Progress = quiet
) -> Stats:
    """Run every sample through the float model and watch the named tensors; memory does not grow with the samples."""
    runner = ObservedRun(model, names, workdir)
    originals = {name: origin_of(value).name for name, value in runner.values.items()}
    seen = {name: _Seen(np.inf, -np.inf, np.zeros(BINS, np.int64) if histograms else None) for name in runner.values}
    used = describe(data, model)
    for number, sample in enumerate(used.samples()):
        for name, array in runner.run(sample):
            if array.size:
                seen[name].add(array, originals[name], number)
        progress(number + 1, data.count)
    tensors = {name: TensorStats(s.low, s.high, s.counts) for name, s in seen.items() if s.low <= s.high}
    return Stats(tensors, used.info())


class ObservedRun:
    """A float session whose inner tensors land in buffers that are allocated once."""

    def __init__(self, model: ir.Model, names: Sequence[str], workdir: Path) -> None:
        observed = model.clone()
        by_name = {v.name or "": v for v in _values(observed.graph)}
        self.values = {name: by_name[name] for name in names}
        self._inputs = {v.name or "" for v in observed.graph.inputs}
        outputs = {v.name for v in observed.graph.outputs}
        wanted = [name for name in names if name not in self._inputs]
        observed.graph.outputs.extend(by_name[name] for name in wanted if name not in outputs)
        path = workdir / "observed.onnx"
        written = write(observed, path)
        try:
            self._session = open_session(path, Mode.FLOAT)
        finally:
            for file in written:
                file.unlink()
        self._binding = self._session.io_binding()
        self._buffers = {name: np.empty(_shape(by_name[name]), np.float32) for name in wanted}
        for name, buffer in self._buffers.items():
            self._binding.bind_output(name, "cpu", 0, np.float32, buffer.shape, buffer.ctypes.data)

    def run(self, sample: Sample) -> Iterable[tuple[str, Array]]:
        """The named tensors of one sample; the arrays are overwritten by the next."""
        for name, array in sample.items():
            self._binding.bind_cpu_input(name, array)
        self._session.run_with_iobinding(self._binding)
        for name in self.values:
            yield name, sample[name] if name in self._inputs else self._buffers[name]


def _shape(value: ir.Value) -> tuple[int, ...]:
    shape = shape_of(value)
    if shape is None:
        raise InputError(f"tensor {origin_of(value).name!r} has no static shape")
    return shape


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    yield from graph.inputs
    for node in graph:
        yield from node.outputs
