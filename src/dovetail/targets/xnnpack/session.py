"""The ExecuTorch runtime, called only in a child process."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.targets.timing import time_alternately

METHOD = "forward"


class LoadedProgram:
    """A program whose delegates are all initialized."""

    def __init__(self, program: Any) -> None:
        self._program, self._method = program, program.load_method(METHOD)

    def execute(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the program; the outputs are in its own memory, which the next run overwrites."""
        outputs: Sequence[Any] = self._method(inputs)
        return outputs


def runtime() -> Any:
    """The runtime's extension module; ``executorch.runtime`` wraps it, but importing that takes six seconds."""
    importlib.import_module("torch")  # first, because the extension requires its libraries
    return importlib.import_module("executorch.extension.pybindings._C")


def load_program(program: Path) -> LoadedProgram:
    """Load a program and its method; XNNPACK rejects an operator at this point, not when the program is lowered."""
    extension = runtime()
    verification = extension.Verification.InternalConsistency
    return LoadedProgram(extension._load_program(str(program), program_verification=verification))


def run_in_child(program: str, samples: str, outputs: str, inputs: int) -> dict[str, Any]:
    """Run all samples, which are stacked along the first axis of each input."""
    import torch

    method = load_program(Path(program))
    with np.load(samples) as file:
        arrays = [file[f"{i}"] for i in range(inputs)]
    results: list[list[Any]] = []
    for index in range(len(arrays[0])):
        # Copied, because the outputs are in the runtime's memory, which the next sample overwrites.
        tensors = method.execute([torch.from_numpy(np.ascontiguousarray(array[index])) for array in arrays])
        results.append([np.array(tensor.numpy()) for tensor in tensors])
    stacked = {f"{i}": np.stack(column) for i, column in enumerate(zip(*results, strict=True))}
    np.savez(outputs, allow_pickle=False, **stacked)
    return {"samples": len(results)}


def time_in_child(programs: list[tuple[str, str, int]]) -> dict[str, Any]:
    """Measure the CPU seconds of every program, run alternately on one thread: [rounds, programs].

    A program is its file, the file with its inputs, and their number.
    """
    runtime()._unsafe_reset_threadpool(1)
    return {"seconds": time_alternately([_run(*program) for program in programs])}


def _run(program: str, sample: str, inputs: int) -> Any:
    import torch

    with np.load(sample) as file:
        tensors = [torch.from_numpy(np.ascontiguousarray(file[f"{i}"])) for i in range(inputs)]
    return partial(load_program(Path(program)).execute, tensors)
