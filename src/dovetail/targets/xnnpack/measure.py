"""Latency beside the same graph in float, from one interleaved run."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from dovetail.target import Artifact, Compiled, Measured
from dovetail.targets.child import run_child
from dovetail.targets.xnnpack.compile import PROGRAM, compile_model
from dovetail.targets.xnnpack.options import XnnpackOptions


def measure(
    asked: XnnpackOptions,
    fitted: Compiled,
    other: tuple[Artifact, ...],
    name: str,
    inputs: list[np.ndarray],
    place: Path,
) -> Measured | str:
    """Lower the other graph too and run both by turns; one sentence where that does not work."""
    lowered = compile_model(asked, other, place)
    if lowered.error:
        return f"{name} was not lowered: {lowered.error}"
    programs = [str(a.path) for each in (fitted, lowered) for a in each.artifacts if a.name == PROGRAM]
    with tempfile.TemporaryDirectory(prefix="dovetail-xnnpack-") as folder:
        sample = Path(folder) / "sample.npz"
        np.savez(sample, allow_pickle=False, **{f"{i}": array for i, array in enumerate(inputs)})
        result = run_child(
            "dovetail.targets.xnnpack.session:time_in_child",
            {"programs": programs, "sample": str(sample), "inputs": len(inputs)},
            who="the ExecuTorch runtime",
            time_limit_s=asked.time_limit_s,
            memory_limit_bytes=asked.memory_limit_bytes,
        )
    if result.answer is None:
        return f"latency was not measured: {result.error}"
    rounds = np.array(result.answer["seconds"])  # [rounds, programs]
    medians = np.median(rounds, axis=0) * 1e6
    ratio = float(np.median(rounds[:, 0] / rounds[:, 1]))
    return Measured(name, float(medians[0]), float(medians[1]), ratio, len(rounds))
