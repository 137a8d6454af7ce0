"""The ExecuTorch runtime, only ever called in a child process."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

METHOD = "forward"
# How often a program is run before and while it is timed.
_WARM_UP, _LEAST_ROUNDS, _MOST_ROUNDS, _SECONDS = 3, 11, 201, 6.0


class LoadedProgram:
    """A program, every delegate initialized."""

    def __init__(self, program: Any) -> None:
        self._program, self._method = program, program.load_method(METHOD)

    def execute(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run it; what it gives out is its own memory, which the next run overwrites."""
        outputs: Sequence[Any] = self._method(inputs)
        return outputs


def runtime() -> Any:
    """The runtime's own extension: ``executorch.runtime`` is the same, but takes six seconds to import the export."""
    importlib.import_module("torch")  # first, because the extension needs its libraries
    return importlib.import_module("executorch.extension.pybindings._C")


def load_program(program: Path) -> LoadedProgram:
    """The method of a program: what XNNPACK refuses, it refuses here."""
    kit = runtime()
    return LoadedProgram(kit._load_program(str(program), program_verification=kit.Verification.InternalConsistency))


def run_in_child(program: str, samples: str, outputs: str, inputs: int) -> dict[str, Any]:
    """Run all samples, which stand one behind the other along the first axis of each input."""
    import torch

    method = load_program(Path(program))
    with np.load(samples) as arrays:
        given = [arrays[f"{i}"] for i in range(inputs)]
    found: list[list[Any]] = []
    for index in range(len(given[0])):
        # Copied, because the runtime gives out its own memory, which the next sample overwrites.
        ran = method.execute([torch.from_numpy(np.ascontiguousarray(array[index])) for array in given])
        found.append([np.array(tensor.numpy()) for tensor in ran])
    stacked = {f"{i}": np.stack(column) for i, column in enumerate(zip(*found, strict=True))}
    np.savez(outputs, allow_pickle=False, **stacked)
    return {"samples": len(found)}


def time_in_child(programs: list[str], sample: str, inputs: int) -> dict[str, Any]:
    """CPU seconds of every program, by turns, on one thread: [rounds, programs]."""
    import torch

    runtime()._unsafe_reset_threadpool(1)
    with np.load(sample) as arrays:
        given = [torch.from_numpy(np.ascontiguousarray(arrays[f"{i}"])) for i in range(inputs)]
    methods = [load_program(Path(program)) for program in programs]
    for method in methods:
        for _ in range(_WARM_UP):
            method.execute(given)
    rounds: list[list[float]] = []
    started = time.process_time()
    while len(rounds) < _LEAST_ROUNDS or (time.process_time() - started < _SECONDS and len(rounds) < _MOST_ROUNDS):
        rounds.append([_seconds(method, given) for method in methods])
    return {"seconds": rounds}


def _seconds(method: Any, given: list[Any]) -> float:
    before = time.process_time()
    method.execute(given)
    return time.process_time() - before
