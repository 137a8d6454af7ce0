"""Make, load and time XNNPACK programs, from the stock quantizer and from Dovetail's plan."""

from __future__ import annotations

import io
import tempfile
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

import dovetail
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.model.read import read
from dovetail.model.session import Mode, open_session, run_session
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.plan.make import observed
from dovetail.plan.request import Request
from dovetail.targets import open_target
from dovetail.targets.xnnpack.lower import lower
from dovetail.targets.xnnpack.operators.plain import PLAIN
from dovetail.targets.xnnpack.session import load_program, runtime
from dovetail.trials.knobs.float_merges import FLOAT_MERGES, IN_FLOAT
from dovetail.trials.variant import Variant
from dovetail.trials.workbench import Workbench


@dataclass
class Program:
    """A program, or the error that prevented it.

    ``undelegated``: operations that do not run in XNNPACK; ``simulated``: the simulation's outputs on the first sample.
    """

    path: Path
    error: str = ""
    undelegated: list[str] = field(default_factory=list)
    delegates: int = 0
    method: Any = None
    notes: tuple[str, ...] = ()
    simulated: list[np.ndarray] = field(default_factory=list)

    def run(self, x: Tensor) -> list[np.ndarray]:
        """Run the program on one input and return its outputs."""
        return [np.array(output.numpy()) for output in self.method.execute([x])]


def stock(module: nn.Module, samples: list[Tensor], path: Path, precision: str) -> Program:
    """Make a program with the stock ExecuTorch flow; ``precision``: ``fp32``, ``w8a8`` (static) or ``w8a8-dynamic``."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.exir import to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    def build() -> Program:
        exported = torch.export.export(module.eval(), (samples[0],), strict=False)
        if precision != "fp32":
            dynamic = precision.endswith("dynamic")
            config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
            prepared = prepare_pt2e(exported.module(), XNNPACKQuantizer().set_global(config))
            for sample in samples:
                prepared(sample)
            exported = torch.export.export(convert_pt2e(prepared), (samples[0],), strict=False)
        edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
        nodes = [node for node in edge.exported_program().graph.nodes if node.op == "call_function"]
        names = [str(getattr(node.target, "__name__", node.target)) for node in nodes]
        path.write_bytes(edge.to_executorch().buffer)
        undelegated = [name for name in names if "delegate" not in name and "getitem" not in name]
        return Program(path, undelegated=undelegated, delegates=sum("delegate" in name for name in names))

    return _loaded(build, path)


def ours(module: nn.Module, samples: list[Tensor], path: Path, precision: str, *, shared: bool = False) -> Program:
    """Make a program with Dovetail, lowered in this process; ``shared``: quantize every Concat, whatever it costs."""
    target = open_target("xnnpack")

    def build() -> Program:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            onnx.save(dovetail.from_torch(module, samples[0]), folder / "in.onnx")
            model, _ = normalize(read(folder / "in.onnx"))
            for rewrite in (*target.rewrites.graph, infer_shapes):
                rewrite(model)
            specs = input_specs(model)
            data = open_data({specs[0].name: np.stack([sample.numpy() for sample in samples])}, specs)
            stats = collect(model, observed(model, target.table), data, workdir=folder, histograms=False)
            variant, notes = Variant(model, stats, Request(target.table.precisions[precision])), ()
            bench = Workbench(target.table, target.backend, data.samples, folder / "trials")
            if not shared:
                variant, decisions = FLOAT_MERGES.decide(bench, variant)
                notes = tuple(str(decision) for decision in decisions if decision.taken == IN_FLOAT)
            artifacts = target.backend.emit(model, bench.plan(variant), folder)
            placement = lower(ir.load(artifacts[0].path), path)
            session = open_session(artifacts[0].path, Mode.EXACT)
            simulated = list(run_session(session, {specs[0].name: samples[0].numpy()}).values())
        undelegated = [operation["op"] for operation in placement.outside]
        return Program(path, undelegated=undelegated, delegates=placement.parts, notes=notes, simulated=simulated)

    return _loaded(build, path)


def stock_of_file(module: nn.Module, sample: Tensor, path: Path) -> Program:
    """Make the stock fp32 program as ``dovetail fit`` does, from the ONNX file of a module."""

    def build() -> Program:
        with tempfile.TemporaryDirectory() as name:
            file = Path(name) / "in.onnx"
            onnx.save(dovetail.from_torch(module, sample), file)
            model = read(file)
            infer_shapes(model)
            placement = lower(model, path, PLAIN)
        undelegated = [operation["op"] for operation in placement.outside]
        return Program(path, undelegated=undelegated, delegates=placement.parts)

    return _loaded(build, path)


def _loaded(build: Any, path: Path) -> Program:
    """Build and load a program without the vendor's output; an error becomes part of the result."""
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            program: Program = build()
            program.method = load_program(path)
            return program
    except Exception as error:  # noqa: BLE001 - any error of the vendor's code is the result to report
        return Program(path, error=f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")


def sqnr_db(expected: np.ndarray, actual: np.ndarray) -> float:
    """Signal power over error power, in dB."""
    noise = float(((expected.astype(np.float64) - actual) ** 2).sum())
    return float("inf") if noise == 0 else float(10 * np.log10((expected.astype(np.float64) ** 2).sum() / noise))


def interleaved_us(programs: list[Program], x: Tensor, seconds: float, threads: int = 1) -> np.ndarray:
    """Time the programs interleaved, in microseconds [rounds, programs]: CPU time on one thread, else wall time."""
    runtime()._unsafe_reset_threadpool(threads)
    now = time.process_time if threads == 1 else time.perf_counter
    for program in programs:
        program.method = load_program(program.path)
        program.method.execute([x])
        program.method.execute([x])
    rounds: list[list[float]] = []
    started = now()
    while len(rounds) < 11 or now() - started < seconds:
        times_us = []
        for program in programs:
            before = now()
            program.method.execute([x])
            times_us.append((now() - before) * 1e6)
        rounds.append(times_us)
    return np.array(rounds)
