"""Measure the latency of programs, alternately, in one process, and build the stock program to compare with."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import MODEL, Artifact, Baseline, BaselineCase, CompileResult, MeasuredLatency, Sample
from dovetail.model.read import read
from dovetail.model.write import write
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.targets.child import run_child
from dovetail.targets.timing import latency_of
from dovetail.targets.xnnpack.compile import PROGRAM, compile_model
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


def measure(
    options: XnnpackOptions, programs: Mapping[str, CompileResult], baseline: str, sample: Sample
) -> MeasuredLatency | str:
    """Run the programs alternately on one thread; return the reason if the latency could not be measured."""
    graph = ir.load(next(iter(programs.values())).artifacts[0].path).graph
    inputs = [np.asarray(sample[str(value.name)]) for value in graph.inputs]
    if any(_has_int8_input(compiled) for compiled in programs.values()):
        return "the inputs of the fitted program are quantized, those of the float program are not"
    files = [str(a.path) for compiled in programs.values() for a in compiled.artifacts if a.name == PROGRAM]
    with tempfile.TemporaryDirectory(prefix="dovetail-xnnpack-") as folder:
        sample_file = Path(folder) / "sample.npz"
        np.savez(sample_file, allow_pickle=False, **{f"{i}": array for i, array in enumerate(inputs)})
        result = run_child(
            "dovetail.targets.xnnpack.session:time_in_child",
            {"programs": files, "sample": str(sample_file), "inputs": len(inputs)},
            who="the ExecuTorch runtime",
            limits=options.limits,
        )
    return result.error if result.answer is None else latency_of(programs, baseline, result.answer["seconds"])


def _has_int8_input(compiled: CompileResult) -> bool:
    return any(value.dtype is ir.DataType.INT8 for value in ir.load(compiled.artifacts[0].path).graph.inputs)
