"""Run a graph and read its intermediate tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.encoding import Array
from dovetail.errors import InputError
from dovetail.model.edit import shape_of
from dovetail.model.memory import require_memory_together
from dovetail.model.origin import each_value, origin_of
from dovetail.model.session import Mode, open_session, runtime_errors
from dovetail.model.view import view_of
from dovetail.model.write import write


class ObservedRun:
    """A session that writes the named intermediate tensors to buffers, which are allocated once."""

    def __init__(self, model: ir.Model, names: Sequence[str], workdir: Path, mode: Mode = Mode.FLOAT) -> None:
        graph = model.graph
        by_name = {v.name or "": v for v in each_value(graph)}
        self.values = {name: by_name[name] for name in names}
        self._inputs = {v.name or "" for v in graph.inputs}
        outputs = {v.name for v in graph.outputs}
        computed = [name for name in names if name not in self._inputs]
        require_memory_together(by_name[name] for name in computed)
        added = [by_name[name] for name in computed if name not in outputs]
        observed = view_of(model, outputs=(*graph.outputs, *added))
        path = workdir / "observed.onnx"
        written = write(observed, path)
        try:
            self._session = open_session(path, mode)
        finally:
            for file in written:
                file.unlink()
        self._binding = self._session.io_binding()
        self._buffers = {name: np.empty(_shape(by_name[name]), _dtype(by_name[name])) for name in computed}
        for name, buffer in self._buffers.items():
            self._binding.bind_output(name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)

    def run(self, sample: Sample) -> Iterable[tuple[str, Array]]:
        """The named tensors for one sample; the next run overwrites the arrays."""
        with runtime_errors("run the model"):
            for name in self._inputs:
                self._binding.bind_cpu_input(name, sample[name])
            if self._buffers:
                self._session.run_with_iobinding(self._binding)
        for name in self.values:
            yield name, sample[name] if name in self._inputs else self._buffers[name]


def _dtype(value: ir.Value) -> type[np.floating]:
    """The dtype of a buffer: float16 in emitted graphs that compute in it, else float32."""
    return np.float16 if value.dtype is ir.DataType.FLOAT16 else np.float32


def _shape(value: ir.Value) -> tuple[int, ...]:
    shape = shape_of(value)
    if shape is None:
        raise InputError(f"tensor {origin_of(value).name!r} has no static shape")
    return shape
