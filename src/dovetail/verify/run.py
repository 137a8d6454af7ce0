"""Running a model on samples: the session is opened once, outputs are produced one sample at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.model.session import Mode, open_session, run_session
from dovetail.model.write import write
from dovetail.qdq.quantized_io import RunSamples


class SessionRun:
    """A model in ONNX Runtime; a call runs samples and yields their outputs."""

    def __init__(self, model: Path | ir.Model, mode: Mode, workdir: Path) -> None:
        if isinstance(model, Path):
            self._session = open_session(model, mode)
        else:
            written = write(model, workdir / f"{mode}.onnx")
            try:
                self._session = open_session(written[0], mode)
            finally:
                for file in written:
                    file.unlink()

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        for sample in samples:
            yield run_session(self._session, sample)


def followed(head: RunSamples, tail: ir.Model | None, workdir: Path) -> RunSamples:
    """Return a function that runs the head, then its tail, which computes the outputs of the caller's model."""
    if tail is None:
        return head
    tail_run = SessionRun(tail, Mode.FLOAT, workdir)

    def run(samples: Iterable[Sample]) -> Iterator[Sample]:
        for_head, for_tail = itertools.tee(samples)
        for sample, head_outputs in zip(for_tail, head(for_head), strict=True):
            yield from tail_run([{**sample, **head_outputs}])

    return run
