"""Latency of programs by turns in one run, and the stock program that ours is compared with."""

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
from dovetail.targets.xnnpack.compile import PROGRAM, compile_model
from dovetail.targets.xnnpack.options import XnnpackOptions

# What a caller would have without us: the file as it is, in float, through torch.export and the partitioner; and the
# same of our own graph, which shows what the rewrites bring without integers.
STOCK, OURS = "stock-fp32", "fp32"


def baselines(asked: XnnpackOptions) -> tuple[Baseline, ...]:
    """What a fitted program is timed beside."""
    return Baseline(STOCK, partial(_stock, asked)), Baseline(OURS, partial(_ours, asked))


def _ours(asked: XnnpackOptions, case: BaselineCase, place: Path) -> CompileResult:
    """Lower our own float graph."""
    return compile_model(asked, _written(case.model, place), place)


def _stock(asked: XnnpackOptions, case: BaselineCase, place: Path) -> CompileResult:
    """Lower the caller's file as it is, or where that has no form in torch, normalized."""
    given = read(case.original, case.shapes)
    infer_shapes(given)
    as_given = compile_model(asked, _written(given, place), place, plain=True)
    if not as_given.error:
        return as_given
    normalized, _ = normalize(read(case.original, case.shapes))
    infer_shapes(normalized)
    instead = compile_model(asked, _written(normalized, place), place, plain=True)
    why = f"{STOCK} is the normalized graph, because the file as it is was not lowered: {as_given.error}"
    return replace(instead, notes=(*instead.notes, why))


def _written(model: ir.Model, place: Path) -> tuple[Artifact, ...]:
    return tuple(Artifact(MODEL, path) for path in write(model, place / "model.onnx"))


def measure(
    asked: XnnpackOptions, programs: Mapping[str, CompileResult], baseline: str, sample: Sample
) -> MeasuredLatency | str:
    """Run the programs by turns on one thread; one sentence where that does not work."""
    graph = ir.load(next(iter(programs.values())).artifacts[0].path).graph
    inputs = [np.asarray(sample[str(value.name)]) for value in graph.inputs]
    if any(_takes_integers(each) for each in programs.values()):
        return "the inputs are quantized, those of the float graph are not"
    files = [str(a.path) for each in programs.values() for a in each.artifacts if a.name == PROGRAM]
    with tempfile.TemporaryDirectory(prefix="dovetail-xnnpack-") as folder:
        given = Path(folder) / "sample.npz"
        np.savez(given, allow_pickle=False, **{f"{i}": array for i, array in enumerate(inputs)})
        result = run_child(
            "dovetail.targets.xnnpack.session:time_in_child",
            {"programs": files, "sample": str(given), "inputs": len(inputs)},
            who="the ExecuTorch runtime",
            limits=asked.limits,
        )
    if result.answer is None:
        return f"latency was not measured: {result.error}"
    rounds = np.array(result.answer["seconds"])  # [rounds, programs]
    base = rounds[:, list(programs).index(baseline)]
    medians = {name: float(np.median(rounds[:, i]) * 1e6) for i, name in enumerate(programs)}
    ratios = {name: float(np.median(rounds[:, i] / base)) for i, name in enumerate(programs)}
    notes = tuple(dict.fromkeys(note for each in programs.values() for note in each.notes))
    return MeasuredLatency(baseline, medians, ratios, len(rounds), notes)


def _takes_integers(compiled: CompileResult) -> bool:
    return any(value.dtype is ir.DataType.INT8 for value in ir.load(compiled.artifacts[0].path).graph.inputs)
