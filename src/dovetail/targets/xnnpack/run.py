"""Run a program in the ExecuTorch runtime: a child process loads it once and runs many samples."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dovetail.backend import Sample
from dovetail.encoding import Array
from dovetail.errors import BackendError, UnfinishedError
from dovetail.targets.tool_call import Task, ToolCall, call_tool
from dovetail.targets.xnnpack.install import IMPORTS, PACKAGES
from dovetail.targets.xnnpack.options import XnnpackOptions

# What the runtime reads and writes.
_PROGRAM, _SAMPLES, _OUTPUTS = "model.pte", "samples.npz", "outputs.npz"
# The size of a batch for one child process: starting it takes seconds, and it holds its samples in memory.
_BATCH_SAMPLES, _BATCH_BYTES = 512, 256 << 20


def run_program(
    options: XnnpackOptions, program: Path, names: tuple[list[str], list[str]], samples: Iterable[Sample]
) -> Iterator[Sample]:
    """Yield the outputs of a program, sample by sample; ``names``: of its inputs and of its outputs, in order."""
    inputs, outputs = names
    for batch in _batches(samples):
        yield from _run_batch(options, program, inputs, outputs, batch)


def _batches(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    source = iter(samples)
    for first in source:
        size = sum(array.nbytes for array in first.values())
        count = min(_BATCH_SAMPLES, max(1, _BATCH_BYTES // max(size, 1)))
        yield [first, *itertools.islice(source, count - 1)]


def _run_batch(
    options: XnnpackOptions, program: Path, inputs: list[str], outputs: list[str], batch: list[Sample]
) -> list[Sample]:
    with tempfile.TemporaryDirectory(prefix="dovetail-xnnpack-") as name:
        folder = Path(name)
        stacked = {f"{i}": np.stack([sample[key] for sample in batch]) for i, key in enumerate(inputs)}
        np.savez(folder / _SAMPLES, allow_pickle=False, **stacked)
        call = ToolCall(
            "dovetail.targets.xnnpack.session:run_in_child",
            {"program": _PROGRAM, "samples": _SAMPLES, "outputs": _OUTPUTS, "inputs": len(inputs)},
            inputs={_PROGRAM: program, _SAMPLES: folder / _SAMPLES},
            packages=tuple(PACKAGES),
            who="the ExecuTorch runtime",
            limits=options.limits,
            task=Task.RUN,
            imports=IMPORTS,
        )
        result = call_tool(call, folder)
        if result.answer is None:
            kind = BackendError if result.finished else UnfinishedError
            raise kind(f"the ExecuTorch runtime did not run the program: {result.error}")
        with np.load(folder / _OUTPUTS) as file:
            arrays: list[Array] = [file[f"{i}"] for i in range(len(outputs))]
        return [{key: array[i] for key, array in zip(outputs, arrays, strict=True)} for i in range(len(batch))]
