"""The TensorRT-RTX builder in a child process: the engine, its layer list, and that of the same graph in float16."""

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
from dovetail.targets.compile_in_child import CompileCall, compile_in_child, model_inputs
from dovetail.targets.tensorrt.coverage import Block, find_blocks, findings
from dovetail.targets.tensorrt.install import PACKAGE
from dovetail.targets.tensorrt.layers import Layer, UnreadableError, parse_layers
from dovetail.targets.tensorrt.options import TrtOptions
from dovetail.targets.tensorrt.unquantized import UnquantizedModel, unquantized

ENGINE, LAYERS, FLOAT16_LAYERS = "engine", "layers", "float16_layers"
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_BUILDER = "the TensorRT-RTX builder"
_ENGINE_FILE, _LAYERS_FILE = "engine.trt", "layers.txt"
# Drawn anew for every weight and repeated: a prime, so that rows differ.
_STAND_IN_NUMBERS = 4099


def compile_model(asked: TrtOptions, artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
    """Build the engine and, to compare, one of the same graph without 8 bit."""
    emitted = ir.load(artifacts[0].path)
    engine, layers, plain_layers = (folder / name for name in (_ENGINE_FILE, _LAYERS_FILE, "float16_layers.txt"))
    for old in (engine, layers, plain_layers):
        old.unlink(missing_ok=True)
    result = _build(asked, artifacts[0].path, folder)
    if error := _error(result):
        return CompileResult(artifacts, error=error, log=result.log, finished=result.finished)
    plain = unquantized(emitted)
    beside = _build_float16(asked, plain, plain_layers)
    made_by = f"{PACKAGE} {(result.answer or {})['version']}"
    files = [(ENGINE, engine), (LAYERS, layers), (FLOAT16_LAYERS, plain_layers)]
    made = (
        *artifacts,
        *(Artifact(name, path, made_by, shipped=name == ENGINE) for name, path in files if path.exists()),
    )
    if error := _error(beside):
        return CompileResult(made, log=result.log, notes=(f"there is no float16 engine to compare with: {error}",))
    try:
        built, in_float16 = (parse_layers(path.read_text()) for path in (layers, plain_layers))
    except UnreadableError as unreadable:
        return CompileResult(made, log=result.log, notes=(f"the layer list could not be read: {unreadable}",))
    blocks = find_blocks(plain, built, in_float16)
    return CompileResult(made, log=result.log, findings=findings(blocks), notes=notes_on(blocks, built, in_float16))


def _build(asked: TrtOptions, model: Path, folder: Path) -> ChildResult:
    """Build the engine of a model, and write it and its layer list into a folder."""
    call = CompileCall(
        "dovetail.targets.tensorrt.build:build_in_child",
        {"model": "model.onnx", "engine": _ENGINE_FILE, "layers": _LAYERS_FILE, "sm": asked.gpu.sm},
        inputs=model_inputs(model),
        packages=(PACKAGE,),
        who=_BUILDER,
        limits=asked.limits,
    )
    return compile_in_child(call, folder)


def _build_float16(asked: TrtOptions, plain: UnquantizedModel, layers: Path) -> ChildResult:
    """The same graph in float16; of what is built only the layer list is kept."""
    with tempfile.TemporaryDirectory(prefix="dovetail-trt-") as name:
        written = write(float16_twin(plain), Path(name) / "float16.onnx")
        result = _build(asked, written[0], Path(name))
        if result.answer is not None and not result.answer["error"]:
            shutil.move(Path(name) / _LAYERS_FILE, layers)
        return result


def float16_twin(plain: UnquantizedModel) -> ir.Model:
    """What is built to compare with: one file, whichever 8-bit type the weights of the graph were rounded to.

    The layers do not depend on the numbers in a weight, so those that were stored in 8 bit get stand-ins.
    """
    twin = plain.model.clone()
    if all(_in_float32(node) for node in twin.graph if is_op(node, *_PRODUCTS)):
        forget_names(twin.graph)
        as_float16(twin)
    nodes = {node.name: node for node in twin.graph if is_op(node, *_PRODUCTS)}
    for edge in plain.edges:
        value = nodes[edge.node].inputs[edge.index] if edge.node in nodes else None
        array = constant_of(value)
        if value is not None and array is not None:
            value.const_value = ir.Tensor(_stand_in(str(value.name), array), name=value.name)
    return twin


def _stand_in(name: str, array: Array) -> Array:
    """Numbers of its own for every name: the builder may make one of two weights that are the same."""
    drawn = np.random.default_rng(zlib.crc32(name.encode())).uniform(-0.1, 0.1, _STAND_IN_NUMBERS)
    return np.resize(drawn, array.shape).astype(array.dtype)


def _in_float32(product: ir.Node) -> bool:
    """Whether a product is computed in float32: all are with ``compute=fp32``, and in most files of other tools."""
    return product.outputs[0].dtype is ir.DataType.FLOAT


def _error(result: ChildResult) -> str:
    return result.error if result.answer is None else str(result.answer["error"])


def notes_on(
    blocks: tuple[Block, ...], built: tuple[Layer, ...], in_float16: tuple[Layer, ...] | None
) -> tuple[str, ...]:
    """Layers and blocks, here and in float16, if that was built."""
    notes = [f"the engine has {len(built)} layers" + (f", in float16 {len(in_float16)}" if in_float16 else "")]
    if blocks:
        kinds = Counter(block.layer.types for block in blocks if block.as_planned and block.layer is not None)
        fused = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
        beside = f"; in float16 {sum(bool(block.fused_in_float16) for block in blocks)}" if in_float16 else ""
        notes.append(f"{len(blocks)} attention blocks: as one kernel as planned {fused}{beside}")
    return tuple(notes)
