"""Every TensorRT case of every rule on the real builder: bad cases do not compile as written, good cases do.

The head of a case states the expected result: ``rejected`` (by the parser or the builder); ``changed`` (built,
but a MatMul, Conv or attention does not run in the type of its Q/DQ pairs, or attention is not the one kernel that it
is in float16); ``differs`` (built in these types, but a gemm over several blocks is multiplied by the scales of all of
them); ``ignored`` (the engine is the same without the fault); ``accepted`` (built, although ONNX Runtime does not load
the file); ``rejected in float16`` (rejected once its scales are float16); ``inaccurate`` (built as planned, but sharp
or flat attention is far from float); ``more layers`` (built as planned, but in more layers than the good case); or
``as planned``.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import dovetail
from dovetail import rule_docs as docs
from dovetail.backend import Artifact, CompileResult
from dovetail.catalog import all_rules, families_with
from dovetail.errors import BackendError
from dovetail.finding import Severity
from dovetail.model.read import read
from dovetail.model.session import Mode, open_session
from dovetail.numerics.metrics import sqnr_db
from dovetail.passes.as_float32 import as_float32
from dovetail.qdq.invert import invert
from dovetail.qdq.params import is_dequantize
from dovetail.targets import open_target
from dovetail.targets.tensorrt.compile import ENGINE, LAYERS
from dovetail.targets.tensorrt.layers import parse_layers
from tests.rules.cases import cases_of, head_of, write

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")

FAMILY = "tensorrt"
INACCURATE_DB, ACCURATE_DB = 10.0, 20.0
# ONNX types -> type names of the layer list; the builder casts int4 weights to int8.
TYPE_NAMES = {"INT4": "Int8", "INT8": "Int8", "UINT8": "UInt8", "FLOAT8E4M3FN": "FP8"}


def built(path: Path, folder: Path, target: str = FAMILY) -> CompileResult:
    folder.mkdir()
    return open_target(target).backend.compile((Artifact("model", path),), folder)


def artifact(compiled: CompileResult, name: str) -> Path:
    return next(a.path for a in compiled.artifacts if a.name == name)


def producer_behind_moves(value: ir.Value) -> ir.Node | None:
    """The producer of a value, after what the builder fuses into the operator that reads the value."""
    node = value.producer()
    source = node.inputs[0] if node is not None and node.op_type in ("Cast", "Mul", "Transpose") else None
    return node if source is None else producer_behind_moves(source)


def matmuls_as_quantized(path: Path, compiled: CompileResult) -> bool:
    """Whether the operands of every MatMul, Conv and Attention have the type of the Q/DQ pairs before it."""
    layers = parse_layers(artifact(compiled, LAYERS).read_text())
    checked = 0
    types = {
        v.name: v.type.tensor_type.elem_type
        for v in onnx.shape_inference.infer_shapes(onnx.load(path)).graph.value_info
    }
    for node in ir.load(path).graph:
        producers = [producer_behind_moves(v) for v in node.inputs if v is not None]
        if node.op_type not in ("Attention", "Conv", "MatMul") or not all(
            is_dequantize(producer) for producer in producers
        ):
            continue
        quantized = {producer.inputs[0] for producer in producers if producer is not None}
        expected = {TYPE_NAMES[ir.DataType(v.dtype or types[v.name]).name] for v in quantized if v is not None}
        of_node = [layer for layer in layers if layer.is_matrix_op and node.name in layer.nodes]
        if not of_node:
            return False
        for layer in of_node:
            weights = () if layer.is_attention or len(layer.inputs) > 1 else layer.constants[:1]
            checked += 1
            if {tensor.dtype for tensor in (*layer.inputs, *weights)} != expected:
                return False
    return checked > 0


def compile_outcome(path: Path, folder: Path, target: str = FAMILY) -> str:
    compiled = built(path, folder, target)
    if compiled.error:
        return "rejected"
    errors = [finding for finding in compiled.findings if finding.severity is Severity.ERROR]
    if errors or not_fused_in_float32(compiled) or not matmuls_as_quantized(path, compiled):
        return "changed"
    return "differs" if has_scales_of_blocks_behind_a_gemm(compiled) else "as planned"


def not_fused_in_float32(compiled: CompileResult) -> bool:
    """Whether a float32 attention block is several layers, and one kernel in the float16 engine."""
    return any("(in float16 it is): it runs in float32" in finding.message for finding in compiled.findings)


def has_scales_of_blocks_behind_a_gemm(compiled: CompileResult) -> bool:
    """Whether the layer after a gemm multiplies its N columns by a constant with more than N scales."""
    layers = parse_layers(artifact(compiled, LAYERS).read_text())
    return any(
        gemm.is_matrix_op and constant.shape[-1:] > gemm.outputs[0].shape[-1:]
        for gemm, layer in itertools.pairwise(layers)
        for constant in layer.constants
    )


def is_loadable(path: Path) -> bool:
    try:
        open_session(path, Mode.EXACT)
    except BackendError:
        return False
    return True


def without_saturate(path: Path) -> Path:
    model = onnx.load(path)
    for node in model.graph.node:
        kept = [attribute for attribute in node.attribute if attribute.name != "saturate"]
        del node.attribute[:]
        node.attribute.extend(kept)
    without = path.with_name("without.onnx")
    onnx.save(model, without)
    return without


def with_half_scales(path: Path) -> Path:
    """The file converted to float16 without checking its scales."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            with np.errstate(under="ignore"):
                half = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(half, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    converted = path.with_name("half.onnx")
    onnx.save(model, converted)
    return converted


def worst_attention_db(path: Path) -> float:
    """The lower SQNR of sharp attention, in which every token attends to a single one, and of flat attention."""
    return min(attention_db(path, amplitude) for amplitude in (4.0, 0.1))


def attention_db(path: Path, amplitude: float) -> float:
    """The SQNR of the file's outputs against those of its float graph, for queries and keys of a magnitude."""
    random = np.random.default_rng(0)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in onnx.load(path).graph.input}
    tokens, size = shapes["q"][-2:]
    key = random.choice([-amplitude, amplitude], [*shapes["q"][:2], tokens, size])
    values = {"q": key, "k": key.swapaxes(-1, -2), "v": random.standard_normal(shapes["v"])}
    feeds = {name: value.astype(np.float32) for name, value in values.items()}
    in_float = path.with_name("float.onnx")
    ir.save(invert(as_float32_copy(path))[0], in_float)
    quantized, real = (open_session(file, Mode.EXACT).run(None, feeds)[0] for file in (path, in_float))
    return sqnr_db(real, quantized)


def as_float32_copy(path: Path) -> ir.Model:
    model = read(path)
    as_float32(model)
    return model


def good_of(code: str, folder: Path) -> Path:
    """The file of a rule's good case."""
    (folder / "good").mkdir()
    return write(docs.case_texts(code, "good")[f"{code}.good.onnxtxt"], folder / "good")


def layer_count(path: Path, folder: Path) -> int:
    return len(parse_layers(artifact(built(path, folder), LAYERS).read_text()))


def cases() -> list[Any]:
    return [pytest.param(code, text, id=name) for name, code, kind, text in cases_of(FAMILY)]


@pytest.mark.parametrize(("code", "text"), cases())
def test_the_builder_agrees_with_the_rule(code: str, text: str, tmp_path: Path) -> None:
    path, expected, target = write(text, tmp_path), head_of(text)["compiled"], head_of(text)["target"]
    if expected == "accepted":
        assert built(path, tmp_path / "built").error == ""
        assert not is_loadable(path)
    elif expected == "ignored":
        as_given, without = built(path, tmp_path / "given"), built(without_saturate(path), tmp_path / "without")
        assert artifact(as_given, ENGINE).read_bytes() == artifact(without, ENGINE).read_bytes()
    elif expected == "inaccurate":
        assert compile_outcome(path, tmp_path / "built") == "as planned"
        assert worst_attention_db(path) < INACCURATE_DB
        assert worst_attention_db(good_of(code, tmp_path)) > ACCURATE_DB
    elif expected == "more layers":
        assert compile_outcome(path, tmp_path / "built") == "as planned"
        assert layer_count(path, tmp_path / "bad") > layer_count(good_of(code, tmp_path), tmp_path / "less")
    elif expected == "rejected in float16":
        assert built(path, tmp_path / "built").error == ""
        assert "Scale coefficients must all be positive" in built(with_half_scales(path), tmp_path / "half").error
    else:
        assert compile_outcome(path, tmp_path / "built", target) == expected
        assert is_loadable(path)


def test_uint8_beside_int8_is_one_finding(tmp_path: Path) -> None:
    path = write(docs.case_texts("Q121", "bad")["Q121.bad.onnxtxt"], tmp_path)
    assert [finding.code for finding in dovetail.check(path, target="tensorrt:sm89")] == ["Q121"]


@pytest.mark.parametrize(
    "rule", [r for r in all_rules() if r.check and FAMILY in families_with(r)], ids=lambda rule: rule.code
)
def test_every_rule_of_the_target_has_cases_for_the_builder(rule: Any) -> None:
    bad, good = (
        {head_of(t)["compiled"] for t in docs.case_texts(rule.code, kind).values()} for kind in ("bad", "good")
    )
    assert good == {"as planned"}
    assert bad
    assert "as planned" not in bad
