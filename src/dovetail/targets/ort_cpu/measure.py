"""Measure the latency of models in ONNX Runtime, and prepare the caller's file to compare with."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.backend import MODEL, Artifact, Baseline, BaselineCase, CompileResult, MeasuredLatency, TimedProgram
from dovetail.model.read import read
from dovetail.model.session import Mode, open_session
from dovetail.model.write import write
from dovetail.targets.child import run_child
from dovetail.targets.timing import latency_of, time_alternately

# What a user has without Dovetail: the file as it is, in float.
STOCK = "stock-fp32"


def _stock(case: BaselineCase, folder: Path) -> CompileResult:
    """The caller's file, which ONNX Runtime optimizes when it is loaded."""
    written = write(read(case.original, case.shapes), folder / "model.onnx")
    return CompileResult(tuple(Artifact(MODEL, path) for path in written))


BASELINES = (Baseline(STOCK, _stock),)


def measure(programs: Mapping[str, TimedProgram], baseline: str) -> MeasuredLatency | str:
    """Run the models alternately on one thread; return the reason if the latency could not be measured."""
    with tempfile.TemporaryDirectory(prefix="dovetail-ort-") as folder:
        models = []
        for number, program in enumerate(programs.values()):
            names, inputs = sorted(program.sample), Path(folder) / f"{number}.npz"
            arrays = {f"{i}": np.asarray(program.sample[name]) for i, name in enumerate(names)}
            np.savez(inputs, allow_pickle=False, **arrays)
            models.append([str(program.compiled.artifacts[0].path), str(inputs), names])
        result = run_child("dovetail.targets.ort_cpu.measure:time_in_child", {"models": models}, who="ONNX Runtime")
    return result.error if result.answer is None else latency_of(programs, baseline, result.answer["seconds"])


def time_in_child(models: list[tuple[str, str, list[str]]]) -> dict[str, Any]:
    """Measure the CPU seconds of every model, run alternately on one thread: [rounds, models].

    A model is its file, the file with its inputs, and their names.
    """
    return {"seconds": time_alternately([_run(*model) for model in models])}


def _run(model: str, inputs: str, names: list[str]) -> Any:
    with np.load(inputs) as file:
        sample = {name: file[f"{i}"] for i, name in enumerate(names)}
    session = open_session(Path(model), Mode.DEPLOYED)
    outputs = [output.name for output in session.get_outputs()]
    feed = {value.name: sample[value.name] for value in session.get_inputs()}
    return lambda: session.run(outputs, feed)
