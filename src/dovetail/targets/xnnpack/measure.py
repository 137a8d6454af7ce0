"""Measure the latency of programs, alternately, in one process, and build the stock program to compare with."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import MODEL, Artifact, Baseline, BaselineCase, CompileResult, MeasuredLatency, TimedProgram
from dovetail.encoding import Array
from dovetail.model.read import read
from dovetail.model.write import write
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.targets.child import run_child
from dovetail.targets.timing import latency_of
from dovetail.targets.xnnpack.compile import PROGRAM, compile_model
from dovetail.targets.xnnpack.install import IMPORTS
from dovetail.targets.xnnpack.options import XnnpackOptions

# The program that a user has without Dovetail: the file as it is, in float, through torch.export and the partitioner;
# and our own graph in float, which shows the effect of the rewrites without quantization.
STOCK, OURS = "stock-fp32", "fp32"


def baselines(options: XnnpackOptions) -> tuple[Baseline, ...]:
    """The programs that a fitted program is compared with."""
    return Baseline(STOCK, partial(_stock, options)), Baseline(OURS, partial(_ours, options))


def _ours(options: XnnpackOptions, case: BaselineCase, place: Path) -> CompileResult:
    """Lower our own float graph."""
    return compile_model(options, _written(case.model, place), place)


def _stock(options: XnnpackOptions, case: BaselineCase, place: Path) -> CompileResult:
    """Lower the user's file as it is, or normalized if an operator of it has no mapping to torch."""
    original = read(case.original, case.shapes)
    infer_shapes(original)
    as_given = compile_model(options, _written(original, place), place, plain=True)
    if not as_given.error:
        return as_given
    normalized, _ = normalize(read(case.original, case.shapes))
    infer_shapes(normalized)
    result = compile_model(options, _written(normalized, place), place, plain=True)
    note = f"{STOCK} is the normalized graph, because the file as given could not be lowered: {as_given.error}"
    return replace(result, notes=(*result.notes, note))


def _written(model: ir.Model, place: Path) -> tuple[Artifact, ...]:
    return tuple(Artifact(MODEL, path) for path in write(model, place / "model.onnx"))


def measure(options: XnnpackOptions, programs: Mapping[str, TimedProgram], baseline: str) -> MeasuredLatency | str:
    """Run the programs alternately on one thread; return the reason if the latency could not be measured."""
    with tempfile.TemporaryDirectory(prefix="dovetail-xnnpack-") as folder:
        files = []
        for number, program in enumerate(programs.values()):
            inputs, path = _inputs(program), Path(folder) / f"{number}.npz"
            np.savez(path, allow_pickle=False, **{f"{i}": array for i, array in enumerate(inputs)})
            lowered = next(artifact.path for artifact in program.compiled.artifacts if artifact.name == PROGRAM)
            files.append([str(lowered), str(path), len(inputs)])
        result = run_child(
            "dovetail.targets.xnnpack.session:time_in_child",
            {"programs": files},
            who="the ExecuTorch runtime",
            limits=options.limits,
            imports=IMPORTS,
        )
    return result.error if result.answer is None else latency_of(programs, baseline, result.answer["seconds"])


def _inputs(program: TimedProgram) -> list[Array]:
    """The sample of a program in the order of its inputs."""
    graph = ir.load(program.compiled.artifacts[0].path).graph
    return [np.asarray(program.sample[str(value.name)]) for value in graph.inputs]
