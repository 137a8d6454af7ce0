"""``tensorrt``: NVIDIA GPUs through TensorRT-RTX, whose builder works ahead of time and without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import Artifact, Backend, CompileResult, DeviceKit, ReadBack, Runner
from dovetail.encoding import QParams
from dovetail.model.write import write
from dovetail.op_support import AUTO, F16, F32, FP16, OpTable
from dovetail.passes.as_float16 import as_float16, why_not_float16
from dovetail.passes.merge_layout import merge_layout
from dovetail.passes.remove_unused import remove_unused
from dovetail.passes.split_fused_linear import split_fused_linear
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.fold_casts import fold_casts
from dovetail.qdq.scale_before_quantize import scale_before_quantize
from dovetail.qdq.transpose_before_quantize import transpose_before_quantize, transpose_stored_weights
from dovetail.storage import Choice, Plan
from dovetail.target import Family, Rewrites, Target
from dovetail.targets.tensorrt.chips import BUILT, gpu_named
from dovetail.targets.tensorrt.compile import FLOAT16_LAYERS, LAYERS, compile_model
from dovetail.targets.tensorrt.device import device_files
from dovetail.targets.tensorrt.device_files import read_device
from dovetail.targets.tensorrt.install import probe
from dovetail.targets.tensorrt.options import DEFAULTS, TrtOptions, read_options
from dovetail.targets.tensorrt.read_back import EVIDENCE, NO_FLOAT16_LIST, read_layers
from dovetail.targets.tensorrt.rules import RULES
from dovetail.targets.tensorrt.rules.retired import RETIRED
from dovetail.targets.tensorrt.table import FP8, W8A8, table
from dovetail.trials.knobs.mixed import mixed

# Rewrites of quantized models, so that every Q/DQ pair is directly before its MatMul, Gemm or Conv. TensorRT-RTX
# fuses without them too; according to NVIDIA TensorRT (the standard SDK) does not (sources: docs/tensorrt.md).
_QDQ_REWRITES = (fold_casts, scale_before_quantize, transpose_before_quantize, transpose_stored_weights)
_NO_RUN = "an engine runs only on its GPU, which is not available here: run the files in device/ on it"
# With float tensors in float16 a ViT has 68 dB against float32 (onnxruntime 1.31.1, the emitted graph).
_FLOAT16_DB = 60.0


def open_target(suffix: str, options: Mapping[str, str]) -> Target:
    """Open the target for one compute capability."""
    gpu = gpu_named(suffix)
    checked = read_options(gpu, options)
    in_float = F16 if checked.half else F32
    precisions = (*((FP8,) if gpu.has_fp8 else ()), W8A8, *((FP16,) if checked.half else ()))
    unavailable = {} if gpu.has_fp8 else {FP8.name: f"{gpu.name} does not support FP8, sm89 and later do"}
    unavailable |= {} if checked.half else {FP16.name: "--option compute=fp32 runs float operators in float32"}
    return Target(
        name=f"tensorrt:{gpu.name}",
        facts=gpu,
        table=OpTable(
            target=f"tensorrt:{gpu.name}",
            ops=table(gpu, in_float),
            precisions={p.name: p for p in precisions},
            choices={AUTO: tuple(p.name for p in precisions)},
            unavailable=unavailable,
            float_encoding=in_float,
            quantizes_edges=True,
            runs_float_between=True,
            keeps_attention=True,
        ),
        backend=Backend(
            probe=partial(probe, gpu),
            emit=partial(emit, checked),
            compile=partial(compile_model, checked),
            read_back=read_back,
            runner=Runner(None, why_not=_NO_RUN),
            device=DeviceKit(device_files, read_device, opens_onnx=True),
            float16_db=_FLOAT16_DB if checked.half else None,
            no_latency="the files in device/ measure it on the GPU; limit MACs in float with --max-float",
        ),
        rewrites=Rewrites((split_fused_linear, merge_layout, remove_unused), quantized=_QDQ_REWRITES),
        rules=RULES,
        knobs=(mixed(),),
    )


FAMILY = Family(open_target, tuple(f"sm{number}" for number in BUILT), tuple(DEFAULTS), RULES, RETIRED)


def emit(options: TrtOptions, model: ir.Model, plan: Plan, folder: Path) -> tuple[Artifact, ...]:
    """Write strongly typed QDQ ONNX: 8 bit where planned, else float16 (or float32); inputs and outputs in float32."""
    emitted = emit_qdq(model, _half_scales(plan) if options.half else plan)
    if options.half:
        as_float16(emitted)
        emitted.graph.sort()
    written = write(emitted, folder / "model.onnx")
    return tuple(Artifact("model" if path.suffix == ".onnx" else "model_data", path) for path in written)


def _half_scales(plan: Plan) -> Plan:
    """Round the scales of a plan to float16, so that constants are quantized with the scale that dequantizes them."""
    edges = {edge: _half_scale(choice) for edge, choice in plan.edges.items()}
    return replace(plan, tensors={name: _half_scale(choice) for name, choice in plan.tensors.items()}, edges=edges)


def _half_scale(choice: Choice) -> Choice:
    storage = choice.storage
    if not isinstance(storage, QParams) or why_not_float16(storage.scale):
        return choice
    half = storage.scale.astype(np.float16).astype(np.float32)
    return replace(choice, storage=QParams(storage.encoding, half, storage.zero_point, storage.axis))


def read_back(compiled: CompileResult, plan: Plan) -> ReadBack:
    """Look up every planned operand and every attention block in the engine's layer list."""
    paths = {artifact.name: artifact.path for artifact in compiled.artifacts}
    if LAYERS not in paths:
        return ReadBack((), EVIDENCE, unparsed="the builder wrote no layer list")
    if FLOAT16_LAYERS not in paths:
        return ReadBack((), EVIDENCE, unparsed=NO_FLOAT16_LIST)
    return read_layers(compiled.artifacts[0].path, paths[LAYERS], paths[FLOAT16_LAYERS], plan)
