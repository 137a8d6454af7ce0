"""Qualcomm's HTP, with its real compiler and emulator from the ``onnxruntime-qnn`` wheel."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
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
from dovetail.passes.linear_to_conv import linear_to_conv
from dovetail.qdq.emit import emit_qdq
from dovetail.storage import Plan
from dovetail.target import Family, Rewrites, Target
from dovetail.targets.htp.chips import ARCHITECTURES, CHIPS, ESTIMATED, chip_named
from dovetail.targets.htp.rewrites import REWRITES
from dovetail.targets.htp.rules import RULES
from dovetail.targets.htp.rules.retired import RETIRED
from dovetail.targets.htp.table import htp_table
from dovetail.targets.htp.workarounds import needed
from dovetail.targets.htp.workarounds.workaround import limited
from dovetail.targets.qnn_htp.compile import CONTEXT, GRAPH, SESSION, compile_model, package
from dovetail.targets.qnn_htp.device import device_files
from dovetail.targets.qnn_htp.expanded_blocks import block_options, mark_expanded_blocks
from dovetail.targets.qnn_htp.install import PACKAGE, installed_qairt, probe
from dovetail.targets.qnn_htp.islands import insert_casts_around_islands
from dovetail.targets.qnn_htp.naive import export_naive
from dovetail.targets.qnn_htp.options import KEYS, HtpOptions, read_options
from dovetail.targets.qnn_htp.read_back import EVIDENCE, read_dump
from dovetail.targets.tool_call import Task, ToolCall, call_tool, model_inputs
from dovetail.trials.knobs.islands import islands
from dovetail.trials.knobs.mixed import mixed
from dovetail.trials.knobs.operand_widths import OPERAND_WIDTHS
from dovetail.trials.knobs.wide_outputs import WIDE_OUTPUTS

# A ViT in float16 on the emulator agrees with float32 to 51 dB (onnxruntime-qnn 2.7.0); a graph must reach 3 dB less.
_FLOAT16_DB = 48.0
# What the emulator reads and writes.
_SAMPLE, _OUTPUTS = "sample.npz", "outputs.npz"
# Samples to emulate before a disagreement counts. PP-OCRv6's text detector in w8a8: every operator is right to one or
# two steps, but in the simulation, too, the SQNR of the output is 8 to 26 dB, depending on the sample. Target and
# simulation differed by 3.6 dB on 4 samples and by 1.4 on 16.
_RETRY_SAMPLES = 16


def open_target(suffix: str, options: Mapping[str, str]) -> Target:
    """Return the target for one chip, with the op table of its architecture."""
    chip = chip_named(suffix)
    htp_options = read_options(chip, options)
    workarounds = needed(installed_qairt()) if htp_options.workarounds else ()
    return Target(
        name=f"qnn-htp:{chip.name}",
        facts=htp_options,
        table=limited(htp_table(f"qnn-htp:{chip.name}", chip), workarounds),
        backend=_backend(htp_options),
        rewrites=Rewrites(
            (*REWRITES, *(change for workaround in workarounds for change in workaround.passes)), blocks=linear_to_conv
        ),
        rules=RULES,
        knobs=(mixed(WIDE_OUTPUTS), OPERAND_WIDTHS, *((islands(FP16),) if chip.has_float16 else ())),
    )


FAMILY = Family(
    open_target, (*CHIPS, f"v{ARCHITECTURES[0]} to v{ARCHITECTURES[-1]}", "socNN/vNN"), KEYS, RULES, RETIRED
)


def _backend(options: HtpOptions) -> Backend:
    """The compiler and the emulator; by default one sample is emulated, because each takes seconds."""
    baselines = (Baseline(FP16.name, partial(_float16, options)), Baseline("naive", partial(_naive, options)))
    return Backend(
        probe=probe,
        emit=emit,
        compile=partial(compile_model, options),
        read_back=read_back,
        runner=Runner(partial(run, options), samples=1, retry_samples=_RETRY_SAMPLES),
        package=partial(package, options),
        estimator=Estimator(baselines) if options.chip.has_estimate else None,
        device=DeviceKit(partial(device_files, options.provider), opens_onnx=True),
        float16_db=_FLOAT16_DB,
        no_latency=f"the vendor's compiler estimates it for {', '.join(f'qnn-htp:soc{soc}' for soc in ESTIMATED)}",
    )


def emit(model: ir.Model, plan: Plan, folder: Path) -> tuple[Artifact, ...]:
    """Write a QDQ ONNX model with integer weights; operators planned in float stay in float.

    The scales of expanded blocks are folded, because the provider rejects a Conv with integer scales.
    """
    emitted = emit_qdq(model, plan, folded_scales=True)
    mark_expanded_blocks(emitted, plan)
    insert_casts_around_islands(emitted, plan)
    written = write(emitted, folder / "model.onnx")
    return tuple(Artifact("model" if path.suffix == ".onnx" else "model_data", path) for path in written)


def _float16(options: HtpOptions, case: BaselineCase, folder: Path) -> CompileResult:
    """Compile the same graph in float16."""
    return compile_model(options, emit(case.model, Plan("qnn-htp", FP16.name, {}), folder), folder)


def _naive(options: HtpOptions, case: BaselineCase, folder: Path) -> CompileResult:
    """Compile the caller's file quantized with ``onnxruntime.quantization``."""
    path = folder / "model.onnx"
    error = export_naive(options, case.original, case.precision, case.samples, case.shapes, path)
    return CompileResult(error=error) if error else compile_model(options, (Artifact("model", path),), folder)


def read_back(compiled: CompileResult, plan: Plan) -> ReadBack:
    """Look up every planned tensor in the graph that was passed to the compiler."""
    dump = next((a.path.parent for a in compiled.artifacts if a.name == GRAPH), None)
    if dump is None:
        return ReadBack((), EVIDENCE, unparsed="the provider dumped no graph")
    return read_dump(compiled.artifacts[0].path, dump, plan, compiled.log)


def run(options: HtpOptions, compiled: CompileResult, samples: Iterable[Sample]) -> Iterator[Sample]:
    """Emulate the compiled model, each sample in a fresh process, as many in parallel as there are cores."""
    context = copy_context()  # context variables of the run: whether it uses the cache

    def emulate(sample: Sample) -> Sample:
        return context.copy().run(_emulate, options, compiled, sample)

    with ThreadPoolExecutor(os.cpu_count()) as cores:
        yield from cores.map(emulate, samples)


def _emulate(options: HtpOptions, compiled: CompileResult, sample: Sample) -> Sample:
    with tempfile.TemporaryDirectory(prefix="dovetail-htp-") as name:
        folder = Path(name)
        # Numbered, because an input may be called like a parameter of savez.
        np.savez(folder / _SAMPLE, allow_pickle=False, **{f"{i}": array for i, array in enumerate(sample.values())})
        model, files = _program(compiled)
        call = ToolCall(
            f"{SESSION}:run_in_child",
            {
                "model": model,
                "options": {**options.provider, **block_options(compiled.artifacts[0].path)},
                "sample": _SAMPLE,
                "names": list(sample),
                "outputs": _OUTPUTS,
            },
            inputs={**files, _SAMPLE: folder / _SAMPLE},
            packages=(PACKAGE,),
            who="the HTP emulator",
            limits=options.limits,
            task=Task.RUN,
        )
        result = call_tool(call, folder)
        if result.answer is None:
            error = BackendError if result.finished else UnfinishedError
            raise error(f"the HTP emulator did not run the model: {result.error}")
        with np.load(folder / _OUTPUTS) as arrays:
            return {name: arrays[f"{i}"] for i, name in enumerate(result.answer["outputs"])}


def _program(compiled: CompileResult) -> tuple[str, dict[str, Path]]:
    """The file that a session opens, and all files that it reads, by name: the context binary if there is one."""
    contexts = {a.path.name: a.path for a in compiled.artifacts if a.name.startswith(CONTEXT)}
    if (name := f"{CONTEXT}.onnx") in contexts:
        return name, contexts
    return "model.onnx", model_inputs(compiled.artifacts[0].path)
