"""The TensorRT rules without a builder: nothing on what fit emits; what depends on the GPU, on options and on sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail import rule_docs as docs
from dovetail import zoo
from dovetail.checking import check_file
from dovetail.model.read import read
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.targets import open_target
from tests.planning import planned
from tests.rules.cases import codes_in, write


@pytest.mark.parametrize("name", ["vit_digits", "detector_scenes"])
@pytest.mark.parametrize(
    ("target", "precision", "compute"),
    [
        ("tensorrt:sm75", "w8a8", "fp16"),
        ("tensorrt:sm89", "fp8", "fp16"),
        ("tensorrt:sm89", "fp16", "fp16"),
        ("tensorrt:sm89", "w8a8", "fp32"),
    ],
)
def test_no_rule_fires_on_what_fit_emits(name: str, target: str, precision: str, compute: str, tmp_path: Path) -> None:
    opened, shipped = open_target(target, {"compute": compute}), zoo.load(name)
    model, _ = normalize(read(shipped.model_path))
    for rewrite in opened.rewrites.graph:
        rewrite(model)
    infer_shapes(model)
    data = {key: array[:8] for key, array in shipped.calib().items()}
    opened.backend.emit(model, planned(model, opened, opened.table.precisions[precision], data=data), tmp_path)
    assert check_file(tmp_path / "model.onnx", opened) == ()


def test_float32_attention_that_was_asked_for_is_not_reported(tmp_path: Path) -> None:
    path = write(docs.case_texts("Q425", "bad")["Q425.bad.onnxtxt"], tmp_path)
    assert codes_in(check_file(path, open_target("tensorrt:sm89"))) == {"Q425"}
    assert check_file(path, open_target("tensorrt:sm89", {"compute": "fp32"})) == ()


HEAD = '<ir_version: 10, opset_import: ["": 21]>'
ATTENTION = (
    "{ a = MatMul(q, k) p = Softmax<axis = -1>(a) m = MatMul(p, v) w_d = DequantizeLinear(w, w_s) y = Add(m, w_d) }"
)


@pytest.mark.parametrize(
    ("lead", "size", "keys", "reported"),
    [
        ("1, 2", 9, 32, True),
        ("1, 2", 256, 32, True),
        ("4, 1", 64, 32, True),
        ("4", 64, 32, True),
        ("1, 2", 64, 2, True),
        ("1, 2", 8, 32, False),
        ("1, 2", 257, 32, False),
        ("1, 1", 64, 32, False),
        ("4", 128, 32, False),
        ("1, 2", 64, 1, False),
    ],
)
def test_float32_attention_is_reported_where_float16_is_fused(
    lead: str, size: int, keys: int, reported: bool, tmp_path: Path
) -> None:
    inputs = f"float[{lead}, 32, {size}] q, float[{lead}, {size}, {keys}] k, float[{lead}, {keys}, {size}] v"
    constants = "int8 w = {3}, float w_s = {0.01}"
    text = f"{HEAD} g ({inputs}) => (float[{lead}, 32, {size}] y) <{constants}> {ATTENTION}"
    found = codes_in(check_file(write(text, tmp_path), open_target("tensorrt:sm89")))
    assert ("Q425" in found) == reported


@pytest.mark.parametrize(
    ("key", "value", "also", "reported"),
    [
        ("4, 2, 64, 32", "4, 2, 32, 64", "", True),
        ("4, 2, 64, 32", "4, 2, 32, 32", "", False),
        ("4, 2, 64, 32", "4, 2, 32, 300", "", False),
        ("4, 1, 64, 32", "4, 1, 32, 64", "", True),
        ("4, 1, 64, 32", "4, 2, 32, 64", "", False),
        ("4, 2, 64, 32", "4, 1, 32, 64", "", False),
        ("4, 2, 64, 32", "4, 2, 32, 64", "z = Neg(q)", True),
        ("4, 2, 64, 32", "4, 2, 32, 64", "z = Identity(a)", False),
        ("4, 2, 64, 32", "4, 2, 32, 64", "z = Neg(p)", False),
        ("4, 2, 64, 32", "4, 2, 32, 64", "z = MatMul(p, q)", False),
    ],
)
def test_float32_attention_is_not_reported_where_float16_is_not_fused(
    key: str, value: str, also: str, reported: bool, tmp_path: Path
) -> None:
    inputs = f"float[4, 2, 32, 64] q, float[{key}] k, float[{value}] v"
    outputs = f"float[4, 2, 32, {value.rsplit(' ')[-1]}] y" + (", float[4, 2, 32, N] z" if also else "")
    nodes = ATTENTION.replace(" }", f" {also} }}")
    text = f"{HEAD} g ({inputs}) => ({outputs}) <int8 w = {{3}}, float w_s = {{0.01}}> {nodes}"
    found = codes_in(check_file(write(text, tmp_path), open_target("tensorrt:sm89")))
    assert ("Q425" in found) == reported


def test_a_nan_guard_is_part_of_the_attention_block(tmp_path: Path) -> None:
    """Q425: the builder fuses such a block in float16."""
    inputs = "float[1, 2, 32, 64] q, float[1, 2, 64, 32] k, float[1, 2, 32, 64] v"
    nodes = ATTENTION.replace("p = Softmax<axis = -1>(a)", "r = Softmax<axis = -1>(a) n = IsNaN(r) p = Where(n, o, r)")
    constants = "int8 w = {3}, float w_s = {0.01}, float o = {0}"
    text = f"{HEAD} g ({inputs}) => (float[1, 2, 32, 64] y) <{constants}> {nodes}"
    assert "Q425" in codes_in(check_file(write(text, tmp_path), open_target("tensorrt:sm89")))


@pytest.mark.parametrize(
    ("sm", "reported"), [(75, True), (80, True), (86, True), (89, False), (120, False), (121, False)]
)
def test_float8_needs_sm89(sm: int, reported: bool, tmp_path: Path) -> None:
    path = write(docs.case_texts("Q127", "good")["Q127.good.onnxtxt"], tmp_path)
    assert codes_in(check_file(path, open_target(f"tensorrt:sm{sm}"))) == ({"Q127"} if reported else set())


def test_a_rank_that_is_known_without_its_dimensions(tmp_path: Path) -> None:
    """Q128: what a Compress selects has an unknown number of rows, and the rank of its input."""
    weight = f"int8[4, 4] w = {{{', '.join(['3'] * 16)}}}, float[4] w_s = {{0.01, 0.01, 0.01, 0.01}}"
    nodes = """h = Cast<to = 10>(c)  q = QuantizeLinear(h, s, z)  d = DequantizeLinear(q, s, z)
        f = DequantizeLinear<axis = 1>(w, w_s)  w_d = Cast<to = 10>(f)  m = MatMul(d, w_d)  y = Cast<to = 1>(m)"""
    for shape, reported in (("8, 4", False), ("2, 8, 4", True)):
        constants = f"<float16 s = {{10854}}, int8 z = {{0}}, {weight}>"
        text = f"""{HEAD} g (float[{shape}] x, bool[8] keep) => (float y) {constants}
            {{ c = Compress<axis = {len(shape.split(",")) - 2}>(x, keep)  {nodes} }}"""
        found = codes_in(check_file(write(text, tmp_path), open_target("tensorrt:sm89")))
        assert ("Q128" in found) == reported


def test_a_gpu_that_supports_the_type_is_named(tmp_path: Path) -> None:
    cases = docs.case_texts("Q127", "bad")
    for name, target, start, fix in (
        ("Q127.bad.3.onnxtxt", "tensorrt:sm75", "'w' is int4", "sm80 or later"),
        ("Q127.bad.2.onnxtxt", "tensorrt:sm80", "'w' is float8e4m3fn", "sm89 or later"),
        ("Q127.bad.onnxtxt", "tensorrt:sm86", "2 tensors are float8e4m3fn", "sm89 or later"),
    ):
        (finding,) = [f for f in check_file(write(cases[name], tmp_path), open_target(target)) if f.code == "Q127"]
        assert finding.message.startswith(start)
        assert finding.fix.endswith(fix)
