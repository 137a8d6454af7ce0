"""The ExecuTorch runtime, only ever called in a child process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

METHOD = "forward"


def load_program(program: Path) -> Any:
    """The method of a program, every delegate initialized: what XNNPACK refuses, it refuses here."""
    from executorch.runtime import Runtime, Verification

    return Runtime.get().load_program(program, verification=Verification.InternalConsistency).load_method(METHOD)


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
