"""Qualcomm's HTP, with its real compiler and emulator from the ``onnxruntime-qnn`` wheel."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import (
    Artifact,
    Backend,
    Baseline,
    BaselineCase,
    CompileResult,
    DeviceKit,
    Estimator,
    ReadBack,
    Runner,
    Sample,
)
from dovetail.errors import BackendError, UnfinishedError
from dovetail.model.write import write
from dovetail.op_support import FP16
from dovetail.qdq.emit import emit_qdq
from dovetail.storage import Plan
from dovetail.target import Family, Rewrites, Target
from dovetail.targets.child import run_child
from dovetail.targets.htp.chips import ARCHITECTURES, CHIPS, chip_named
from dovetail.targets.htp.rewrites import REWRITES
from dovetail.targets.htp.rules import RULES
from dovetail.targets.htp.rules.retired import RETIRED
from dovetail.targets.htp.table import htp_table
from dovetail.targets.qnn_htp.compile import GRAPH, SESSION, compile_model, package
from dovetail.targets.qnn_htp.device import device_side
from dovetail.targets.qnn_htp.install import probe
from dovetail.targets.qnn_htp.islands import hold_islands
from dovetail.targets.qnn_htp.naive import export_naive
from dovetail.targets.qnn_htp.options import KEYS, HtpOptions, read_options
from dovetail.targets.qnn_htp.read_back import EVIDENCE, read_dump
from dovetail.trials.knobs.islands import islands
from dovetail.trials.knobs.operand_widths import OPERAND_WIDTHS

# A ViT in float16 on the emulator is 51 dB from float32 (onnxruntime-qnn 2.7.0); three less are asked of a graph.
_FLOAT16_DB = 48.0


def open_target(variant: str, options: Mapping[str, str]) -> Target:
    """The target of one chip; its table follows from the architecture."""
    chip = chip_named(variant)
    asked = read_options(chip, options)
    return Target(
        name=f"qnn-htp:{chip.name}",
        facts=asked,
        table=htp_table(f"qnn-htp:{chip.name}", chip),
        backend=_backend(asked),
        rewrites=Rewrites(REWRITES),
        rules=RULES,
        knobs=(OPERAND_WIDTHS, *((islands(FP16),) if chip.has_float16 else ())),
    )


FAMILY = Family(
    open_target, (*CHIPS, f"v{ARCHITECTURES[0]} to v{ARCHITECTURES[-1]}", "socNN/vNN"), KEYS, RULES, RETIRED
)


def _backend(asked: HtpOptions) -> Backend:
    """How the compiler and the emulator are reached; one sample by default, because each takes seconds."""
    baselines = (Baseline(FP16.name, partial(_float16, asked)), Baseline("naive", partial(_naive, asked)))
    return Backend(
        probe=probe,
        emit=emit,
        compile=partial(compile_model, asked),
        read_back=read_back,
        runner=Runner(partial(run, asked), samples=1, retry_samples=8),
        package=partial(package, asked),
        estimator=Estimator(baselines) if asked.chip.has_estimate else None,
        device=DeviceKit(partial(device_side, asked.provider)),
        float16_db=_FLOAT16_DB,
    )


def emit(model: ir.Model, plan: Plan, folder: Path) -> tuple[Artifact, ...]:
    """QDQ ONNX with integer weights, in which float operators stay float."""
    emitted = emit_qdq(model, plan)
    hold_islands(emitted, plan)
    written = write(emitted, folder / "model.onnx")
    return tuple(Artifact("model" if path.suffix == ".onnx" else "model_data", path) for path in written)


def _float16(asked: HtpOptions, case: BaselineCase, folder: Path) -> CompileResult:
    """The same graph in float16."""
    return compile_model(asked, emit(case.model, Plan("qnn-htp", FP16.name, {}), folder), folder)


def _naive(asked: HtpOptions, case: BaselineCase, folder: Path) -> CompileResult:
    """A naive export of the caller's file."""
    path = folder / "model.onnx"
    error = export_naive(asked, case.original, case.precision, case.samples, case.shapes, path)
    return CompileResult(error=error) if error else compile_model(asked, (Artifact("model", path),), folder)


def read_back(compiled: CompileResult, plan: Plan) -> ReadBack:
    """Every planned tensor, looked up in the graph that the compiler was given."""
    dump = next((a.path.parent for a in compiled.artifacts if a.name == GRAPH), None)
    if dump is None:
        return ReadBack((), EVIDENCE, unparsed="no graph was dumped")
    return read_dump(compiled.artifacts[0].path, dump, plan, compiled.log)


def run(asked: HtpOptions, compiled: CompileResult, samples: Iterable[Sample]) -> Iterator[Sample]:
    """Emulate what ships, every sample in a fresh process, as many at once as there are cores."""
    model = next((a.path for a in compiled.artifacts if a.name == "context"), compiled.artifacts[0].path)
    with ThreadPoolExecutor(os.cpu_count()) as cores:
        yield from cores.map(partial(_emulate, asked, model), samples)


def _emulate(asked: HtpOptions, model: Path, sample: Sample) -> Sample:
    with tempfile.TemporaryDirectory(prefix="dovetail-htp-") as name:
        given, answer = Path(name) / "sample.npz", Path(name) / "outputs.npz"
        np.savez(given, allow_pickle=False, **sample)
        arguments = {"model": str(model), "options": dict(asked.provider), "sample": str(given), "outputs": str(answer)}
        result = run_child(f"{SESSION}:run_in_child", arguments, who="the HTP emulator", limits=asked.limits)
        if result.answer is None:
            kind = BackendError if result.finished else UnfinishedError
            raise kind(f"the HTP emulator did not run the model: {result.error}")
        with np.load(answer) as arrays:
            return {key: arrays[key] for key in arrays.files}
