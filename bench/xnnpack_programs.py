"""Programs for XNNPACK: from the stock quantizer, and from Dovetail's plan; how they load, run and compare."""

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
    """A program, or why there is none; ``outside``: what runs outside XNNPACK; ``simulated``: on the first sample."""

    path: Path
    error: str = ""
    outside: list[str] = field(default_factory=list)
    delegates: int = 0
    method: Any = None
    notes: tuple[str, ...] = ()
    simulated: list[np.ndarray] = field(default_factory=list)

    def run(self, x: Tensor) -> list[np.ndarray]:
        """The outputs for one input."""
        return [np.array(output.numpy()) for output in self.method.execute([x])]


def stock(module: nn.Module, samples: list[Tensor], path: Path, precision: str) -> Program:
    """What the stock flow gives: ``fp32``, ``w8a8`` (static) or ``w8a8-dynamic``."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.exir import to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    def build() -> Program:
        plain = module.eval()
        exported = torch.export.export(plain, (samples[0],), strict=False)
        if precision != "fp32":
            dynamic = precision.endswith("dynamic")
            config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
            prepared = prepare_pt2e(exported.module(), XNNPACKQuantizer().set_global(config))
            for sample in samples:
                prepared(sample)
            exported = torch.export.export(convert_pt2e(prepared), (samples[0],), strict=False)
        edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
        nodes = [n for n in edge.exported_program().graph.nodes if n.op == "call_function"]
        names = [str(getattr(n.target, "__name__", n.target)) for n in nodes]
        path.write_bytes(edge.to_executorch().buffer)
        outside = [n for n in names if "delegate" not in n and "getitem" not in n]
        return Program(path, outside=outside, delegates=sum("delegate" in n for n in names))

    return _loaded(build, path)


def ours(module: nn.Module, samples: list[Tensor], path: Path, precision: str, *, shared: bool = False) -> Program:
    """What Dovetail gives, lowered in this process; ``shared``: no merge is left float, whatever it costs."""
    target = open_target("xnnpack")

    def build() -> Program:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            onnx.save(dovetail.from_torch(module, samples[0]), folder / "in.onnx")
            model, _ = normalize(read(folder / "in.onnx"))
            for each in (*target.rewrites.graph, infer_shapes):
                each(model)
            specs = input_specs(model)
            data = open_data({specs[0].name: np.stack([s.numpy() for s in samples])}, specs)
            stats = collect(model, observed(model, target.table), data, workdir=folder, histograms=False)
            variant, notes = Variant(model, stats, Request(target.table.precisions[precision])), ()
            bench = Workbench(target.table, target.backend, data.samples, folder / "trials")
            if not shared:
                variant, decisions = FLOAT_MERGES.decide(bench, variant)
                notes = tuple(str(one) for one in decisions if one.taken == IN_FLOAT)
            artifacts = target.backend.emit(model, bench.plan(variant), folder)
            placed = lower(ir.load(artifacts[0].path), path)
            session = open_session(artifacts[0].path, Mode.EXACT)
            simulated = list(run_session(session, {specs[0].name: samples[0].numpy()}).values())
        outside = [each["op"] for each in placed.outside]
        return Program(path, outside=outside, delegates=placed.parts, notes=notes, simulated=simulated)

    return _loaded(build, path)


def stock_of_file(module: nn.Module, sample: Tensor, path: Path) -> Program:
    """The stock fp32 program as ``dovetail fit`` makes it, from the ONNX file of a module."""

    def build() -> Program:
        with tempfile.TemporaryDirectory() as name:
            file = Path(name) / "in.onnx"
            onnx.save(dovetail.from_torch(module, sample), file)
            given = read(file)
            infer_shapes(given)
            placed = lower(given, path, PLAIN)
        return Program(path, outside=[each["op"] for each in placed.outside], delegates=placed.parts)

    return _loaded(build, path)


def _loaded(build: Any, path: Path) -> Program:
    """Build and load, the vendor's many words kept back; a failure is the figure."""
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            program: Program = build()
            program.method = load_program(path)
            return program
    except Exception as error:  # noqa: BLE001 - whatever the vendor raises is what is measured
        return Program(path, error=f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")


def sqnr_db(expected: np.ndarray, found: np.ndarray) -> float:
    """Signal over difference."""
    noise = float(((expected.astype(np.float64) - found) ** 2).sum())
    return float("inf") if noise == 0 else float(10 * np.log10((expected.astype(np.float64) ** 2).sum() / noise))


def interleaved_us(programs: list[Program], x: Tensor, seconds: float, threads: int = 1) -> np.ndarray:
    """Microseconds by turns, [rounds, programs]: CPU time on one thread, passed time on several."""
    runtime()._unsafe_reset_threadpool(threads)
    now = time.process_time if threads == 1 else time.perf_counter
    for program in programs:
        program.method = load_program(program.path)
        program.method.execute([x])
        program.method.execute([x])
    rounds: list[list[float]] = []
    started = now()
    while len(rounds) < 11 or now() - started < seconds:
        turn = []
        for program in programs:
            before = now()
            program.method.execute([x])
            turn.append((now() - before) * 1e6)
        rounds.append(turn)
    return np.array(rounds)
