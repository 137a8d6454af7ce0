"""Run the TensorRT-RTX builder in a child process: on the emitted graph, and on the same graph in float16."""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import Artifact, CompileResult
from dovetail.encoding import Array
from dovetail.model.edit import constant_of, forget_names, is_op
from dovetail.model.write import write
from dovetail.passes.as_float16 import as_float16
from dovetail.targets.child import ChildResult
from dovetail.targets.tensorrt.coverage import Block, find_blocks, findings
from dovetail.targets.tensorrt.install import PACKAGE
from dovetail.targets.tensorrt.layers import Layer, UnreadableError, parse_layers
from dovetail.targets.tensorrt.options import TrtOptions
from dovetail.targets.tensorrt.unquantized import UnquantizedModel, unquantized
from dovetail.targets.tool_call import ToolCall, call_tool, model_inputs

ENGINE, LAYERS, FLOAT16_LAYERS = "engine", "layers", "float16_layers"
_MATRIX_OPS = ("Conv", "Gemm", "MatMul")
_BUILDER = "the TensorRT-RTX builder"
_LOAD = "TensorRT-RTX: Runtime.deserialize_cuda_engine, or tensorrt_rtx --loadEngine=engine.trt"
_ENGINE_FILE, _LAYERS_FILE = "engine.trt", "layers.txt"
# How many random values are drawn for a weight, then repeated: a prime, so that rows differ.
_STAND_IN_VALUES = 4099


def compile_model(options: TrtOptions, artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
    """Build the engine and, for comparison, an engine of the same graph without Q/DQ pairs."""
    emitted = ir.load(artifacts[0].path)
    engine, layers, plain_layers = (folder / name for name in (_ENGINE_FILE, _LAYERS_FILE, "float16_layers.txt"))
    for stale in (engine, layers, plain_layers):
        stale.unlink(missing_ok=True)
    result = _build(options, artifacts[0].path, folder)
    if error := _error(result):
        return CompileResult(artifacts, error=error, log=result.log, finished=result.finished)
    plain = unquantized(emitted)
    float16_result = _build_float16(options, plain, plain_layers)
    made_by = f"{PACKAGE} {(result.answer or {})['version']}"
    files = [(ENGINE, engine), (LAYERS, layers), (FLOAT16_LAYERS, plain_layers)]
    all_artifacts = (
        *artifacts,
        *(
            Artifact(name, path, made_by, shipped=name == ENGINE, load=_LOAD if name == ENGINE else "")
            for name, path in files
            if path.exists()
        ),
    )
    if error := _error(float16_result):
        note = f"the float16 engine to compare with could not be built: {error}"
        return CompileResult(all_artifacts, log=result.log, notes=(note,))
    try:
        built, in_float16 = (parse_layers(path.read_text()) for path in (layers, plain_layers))
    except UnreadableError as unreadable:
        return CompileResult(all_artifacts, log=result.log, notes=(f"the layer list could not be read: {unreadable}",))
    blocks = find_blocks(plain, built, in_float16)
    return CompileResult(
        all_artifacts, log=result.log, findings=findings(blocks), notes=notes_on(blocks, built, in_float16)
    )


def _build(options: TrtOptions, model: Path, folder: Path) -> ChildResult:
    """Build the engine of a model, and write it and its layer list into a folder."""
    call = ToolCall(
        "dovetail.targets.tensorrt.build:build_in_child",
        {"model": "model.onnx", "engine": _ENGINE_FILE, "layers": _LAYERS_FILE, "sm": options.gpu.sm},
        inputs=model_inputs(model),
        packages=(PACKAGE, f"{PACKAGE}-libs", f"{PACKAGE}-bindings"),
        who=_BUILDER,
        limits=options.limits,
        is_final=lambda result: not _error(result),
    )
    return call_tool(call, folder)


def _build_float16(options: TrtOptions, plain: UnquantizedModel, layers: Path) -> ChildResult:
    """Build the same graph in float16, and keep only the layer list."""
    with tempfile.TemporaryDirectory(prefix="dovetail-trt-") as name:
        written = write(float16_twin(plain), Path(name) / "float16.onnx")
        result = _build(options, written[0], Path(name))
        if result.answer is not None and not result.answer["error"]:
            shutil.move(Path(name) / _LAYERS_FILE, layers)
        return result


def float16_twin(plain: UnquantizedModel) -> ir.Model:
    """The float16 graph to compare with: the same file, whichever 8-bit type the weights were rounded to.

    Which layers are built does not depend on weight values, so quantized weights are replaced by random ones.
    """
    twin = plain.model.clone()
    if all(_in_float32(node) for node in twin.graph if is_op(node, *_MATRIX_OPS)):
        forget_names(twin.graph)
        as_float16(twin)
    nodes = {node.name: node for node in twin.graph if is_op(node, *_MATRIX_OPS)}
    for edge in plain.edges:
        value = nodes[edge.node].inputs[edge.index] if edge.node in nodes else None
        array = constant_of(value)
        if value is not None and array is not None:
            value.const_value = ir.Tensor(_stand_in(str(value.name), array), name=value.name)
    return twin


def _stand_in(name: str, array: Array) -> Array:
    """Random values, different for every name: the builder may merge two weights that are equal."""
    drawn = np.random.default_rng(zlib.crc32(name.encode())).uniform(-0.1, 0.1, _STAND_IN_VALUES)
    return np.resize(drawn, array.shape).astype(array.dtype)


def _in_float32(node: ir.Node) -> bool:
    """Whether a node writes float32, as with ``compute=fp32`` and in most files of other tools."""
    return node.outputs[0].dtype is ir.DataType.FLOAT


def _error(result: ChildResult) -> str:
    return result.error if result.answer is None else str(result.answer["error"])


def notes_on(
    blocks: tuple[Block, ...], built: tuple[Layer, ...], in_float16: tuple[Layer, ...] | None
) -> tuple[str, ...]:
    """Count layers and fused attention blocks, in this engine and in the float16 engine if it was built."""
    notes = [f"the engine has {len(built)} layers" + (f", the float16 engine {len(in_float16)}" if in_float16 else "")]
    if blocks:
        types = Counter(block.layer.types for block in blocks if block.as_planned and block.layer is not None)
        fused = ", ".join(f"{count} ({kind})" for kind, count in types.items()) or "none"
        count = sum(bool(block.fused_in_float16) for block in blocks)
        in_float = f"; in the float16 engine: {count}" if in_float16 else ""
        notes.append(f"{len(blocks)} attention blocks: as one kernel in the planned type: {fused}{in_float}")
    return tuple(notes)
