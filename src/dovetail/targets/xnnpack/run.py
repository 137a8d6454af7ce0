"""Running a program in the ExecuTorch runtime: the child's side loads it once and runs many samples."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dovetail.backend import Sample
from dovetail.encoding import Array
from dovetail.errors import BackendError, UnfinishedError
from dovetail.targets.child import run_child
from dovetail.targets.xnnpack.options import XnnpackOptions

# How much goes to one child: its start costs seconds, and its samples stand in memory.
_BATCH_SAMPLES, _BATCH_BYTES = 512, 256 << 20


def run_program(
    asked: XnnpackOptions, program: Path, names: tuple[list[str], list[str]], samples: Iterable[Sample]
) -> Iterator[Sample]:
    """The outputs of a program, sample by sample; ``names`` are those of its inputs and outputs, in order."""
    inputs, outputs = names
    for batch in _batches(samples):
        yield from _run_batch(asked, program, inputs, outputs, batch)


def _batches(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    source = iter(samples)
    for first in source:
        size = sum(array.nbytes for array in first.values())
        count = min(_BATCH_SAMPLES, max(1, _BATCH_BYTES // max(size, 1)))
        yield [first, *itertools.islice(source, count - 1)]


def _run_batch(
    asked: XnnpackOptions, program: Path, inputs: list[str], outputs: list[str], batch: list[Sample]
) -> list[Sample]:
    with tempfile.TemporaryDirectory(prefix="dovetail-xnnpack-") as name:
        given, answer = Path(name) / "samples.npz", Path(name) / "outputs.npz"
        np.savez(
            given, allow_pickle=False, **{f"{i}": np.stack([s[key] for s in batch]) for i, key in enumerate(inputs)}
        )
        arguments = {"program": str(program), "samples": str(given), "outputs": str(answer), "inputs": len(inputs)}
        result = run_child(
            "dovetail.targets.xnnpack.session:run_in_child",
            arguments,
            who="the ExecuTorch runtime",
            limits=asked.limits,
        )
        if result.answer is None:
            kind = BackendError if result.finished else UnfinishedError
            raise kind(f"the ExecuTorch runtime did not run the program: {result.error}")
        with np.load(answer) as arrays:
            found: list[Array] = [arrays[f"{i}"] for i in range(len(outputs))]
        return [{key: each[i] for key, each in zip(outputs, found, strict=True)} for i in range(len(batch))]
