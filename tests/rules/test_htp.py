"""The HTP rules without a compiler: whole models, fused layers, different chips, Einsum equations."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dovetail import zoo
from dovetail.checking import check_file
from dovetail.finding import Finding, Severity
from dovetail.model.read import read
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.targets import open_target
from dovetail.targets.htp.chips import chip_named
from dovetail.targets.htp.rules.shapes import second_matmul_operand
from dovetail.targets.qnn_htp.naive import export_naive
from dovetail.targets.qnn_htp.options import read_options
from tests.planning import planned
from tests.rules.cases import write

HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'
A16 = "float s = {0.0001}, uint16 z = {32768}"
A8 = "float s8 = {0.03}, uint8 z8 = {128}"
WEIGHT = "int8[2, 2] w = {1, 2, 3, 4}, float w_s = {0.01}, int8 w_z = {0}"
BIAS = "int32[2] b = {1, 2}, float b_s = {0.000001}"


def codes(body: str, folder: Path, chip: str = "sm8550") -> list[tuple[str, Severity]]:
    return [(finding.code, finding.severity) for finding in findings(body, folder, chip)]


def findings(body: str, folder: Path, chip: str = "sm8550") -> tuple[Finding, ...]:
    return check_file(write(HEAD + body, folder), open_target(f"qnn-htp:{chip}"))


def qdq(name: str, qparams: str = "s, z") -> str:
    return f"{name}_q = QuantizeLinear({name}, {qparams}) {name}_dq = DequantizeLinear({name}_q, {qparams})"


@pytest.mark.parametrize("precision", ["w8a16", "w8a8"])
@pytest.mark.parametrize("name", ["vit_digits", "detector_scenes"])
def test_no_rule_fires_on_what_fit_emits(name: str, precision: str, tmp_path: Path) -> None:
    target, shipped = open_target("qnn-htp:sm8550"), zoo.load(name)
    model, _ = normalize(read(shipped.model_path))
    for rewrite in target.rewrites.graph:
        rewrite(model)
    infer_shapes(model)
    data = {key: array[:8] for key, array in shipped.calib().items()}
    target.backend.emit(model, planned(model, target, target.table.precisions[precision], data=data), tmp_path)
    assert check_file(tmp_path / "model.onnx", target) == ()


def test_uint16_second_operands_of_the_naive_baseline_are_reported(tmp_path: Path) -> None:
    """The compiled graph of this export has a Convert to uint8 before each of the eight MatMuls."""
    shipped = zoo.load("vit_digits")
    samples = [{key: array[i : i + 1] for key, array in shipped.calib().items()} for i in range(2)]
    assert (
        export_naive(
            read_options(chip_named("sm8550"), {}), shipped.model_path, "w8a16", samples, {}, tmp_path / "model.onnx"
        )
        == ""
    )
    found = check_file(tmp_path / "model.onnx", open_target("qnn-htp:sm8550"))
    assert {finding.severity for finding in found if finding.code != "Q114"} == {Severity.WARNING}
    operands = [finding for finding in found if finding.code == "Q104"]
    assert len(operands) == 8
    assert {str(finding.place).split(".attn/")[0] for finding in operands} == {f"blocks.{i}" for i in range(4)}
    # The gammas are uint8, and a Softmax has an input scale that HTP truncates. The Concat of class token and patches
    # converts in integers.
    assert sorted(finding.code for finding in found if finding not in operands) == ["Q114", "Q558"]


def linear(behind: str) -> str:
    return f"""g (float[1,4,2] x) => (float[1,4,2] y) <{A16}, {WEIGHT}, {BIAS}>
    {{ {qdq("x")} w_dq = DequantizeLinear(w, w_s, w_z) b_dq = DequantizeLinear(b, b_s)
    m = MatMul(x_dq, w_dq) {behind} }}"""


def test_matmul_add_and_relu_without_a_qdq_pair_between_are_one_layer(tmp_path: Path) -> None:
    last = "y_q = QuantizeLinear(r, s, z) y = DequantizeLinear(y_q, s, z)"
    assert codes(linear(f"a = Add(m, b_dq) r = Relu(a) {last}"), tmp_path) == []
    assert codes(linear(f"a = Add(b_dq, m) r = Relu(a) {last}"), tmp_path) == []
    separate = f"{qdq('m')} a = Add(m_dq, b_dq) {qdq('a')} r = Relu(a_dq) {last}"
    assert codes(linear(separate), tmp_path) == [("Q401", Severity.ERROR), ("Q407", Severity.NOTE)]


@pytest.mark.parametrize(
    ("shape", "reported"), [("2", True), ("1,2", True), ("1,1,2", True), ("1", False), ("1,1,1", False), ("4,1", False)]
)
def test_a_bias_has_one_value_per_channel(shape: str, reported: bool, tmp_path: Path) -> None:
    numbers = ", ".join(["300"] * math.prod(map(int, shape.split(","))))
    text = f"""g (float[1,4,2] x) => (float[1,4,2] y) <{A16}, {WEIGHT}, uint16[{shape}] k = {{{numbers}}}>
    {{ {qdq("x")} w_dq = DequantizeLinear(w, w_s, w_z) k_dq = DequantizeLinear(k, s, z) m = MatMul(x_dq, w_dq)
    {qdq("m")} a = Add(m_dq, k_dq) y_q = QuantizeLinear(a, s, z) y = DequantizeLinear(y_q, s, z) }}"""
    assert codes(text, tmp_path) == ([("Q407", Severity.NOTE)] if reported else [])


def test_an_int32_input_of_another_operator_is_reported_there(tmp_path: Path) -> None:
    body = f"g (float[1,4,2] x) => (float[1,4,2] y) <{A16}, {BIAS}> {{ {qdq('x')} b_dq = DequantizeLinear(b, b_s) "
    body += "m = Mul(x_dq, b_dq) y_q = QuantizeLinear(m, s, z) y = DequantizeLinear(y_q, s, z) }"
    (finding,) = findings(body, tmp_path)
    assert (finding.code, str(finding.place)) == ("Q401", "Mul/m")
    assert "has the int32 input 'b'" in finding.message


MIXED_WIDTHS = f"""g (float[1,4,8] x) => (float[1,4,8] y) <{A16}, {A8}>
{{ {qdq("x")} r = %s(x_dq) y_q = QuantizeLinear(r, s8, z8) y = DequantizeLinear(y_q, s8, z8) }}"""


@pytest.mark.parametrize(
    ("chip", "op", "severity"),
    [
        ("sm8550", "Relu", Severity.WARNING),
        ("v73", "Relu", Severity.WARNING),
        ("v73", "Gelu", Severity.ERROR),
        ("qcs6490", "Relu", Severity.ERROR),
    ],
)
def test_mixed_dtypes_are_an_error_without_float16(chip: str, op: str, severity: Severity, tmp_path: Path) -> None:
    assert codes(MIXED_WIDTHS % op, tmp_path, chip) == [("Q105", severity)]


MATMUL = f"""g (float[1,4,8] q, float[1,8,4] k) => (float[1,4,4] y) <{A16}, {A8}, int16 off = {{100}}>
{{ {qdq("q", "%s")} {qdq("k", "%s")} m = MatMul(q_dq, k_dq)
y_q = QuantizeLinear(m, %s) y = DequantizeLinear(y_q, %s) }}"""


@pytest.mark.parametrize(
    ("first", "second", "severity", "message"),
    [
        ("s, z", "s, off", Severity.ERROR, "rejects its zero point 100"),
        ("s8, z8", "s, z", Severity.ERROR, "rejects it with a first operand in uint8"),
        ("s, z", "s, z", Severity.WARNING, "silently converts it to uint8"),
    ],
)
def test_second_operands(first: str, second: str, severity: Severity, message: str, tmp_path: Path) -> None:
    (finding,) = findings(MATMUL % (first, first, second, second, first, first), tmp_path)
    assert (finding.code, finding.severity) == ("Q104", severity)
    assert message in finding.message


def test_consumers_of_a_qdq_pair_are_found_behind_a_reshape(tmp_path: Path) -> None:
    body = f"""g (float[1,4,8] x) => (float[4,8] y) <{A16}, int64[2] rows = {{4, 8}}>
    {{ g = Gelu(x) {qdq("g")} f = Reshape(g_dq, rows) %s }}"""
    assert codes(body % "y = Neg(f)", tmp_path) == [("Q402", Severity.WARNING)]
    assert codes(body % "y = Identity(f)", tmp_path) == []


def test_batched_linear_layers_are_counted_in_one_finding(tmp_path: Path) -> None:
    body = f"""g (float[4,3,2] x) => (float[4,3,2] y) <{A16}, {WEIGHT}> {{ {qdq("x")}
    w_dq = DequantizeLinear(w, w_s, w_z) a = MatMul(x_dq, w_dq) {qdq("a")} v_dq = DequantizeLinear(w, w_s, w_z)
    m = MatMul(a_dq, v_dq) y_q = QuantizeLinear(m, s, z) y = DequantizeLinear(y_q, s, z) }}"""
    (finding,) = findings(body, tmp_path)
    assert (finding.code, finding.severity, finding.numbers) == ("Q403", Severity.NOTE, {"layers": 2.0})
    assert finding.message.startswith("2 linear layers are MatMuls of rank 3 or more; the first with windows is ")


@pytest.mark.parametrize("bias", ["uint16[2] b = {1, 2}, float b_s = {0.1}", BIAS])
def test_a_bias_that_is_not_int32_is_rejected_and_has_no_scales_to_compare(bias: str, tmp_path: Path) -> None:
    per_channel = "int8[2, 2] w = {1, 2, 3, 4}, float[2] w_s = {0.01, 0.02}, int8[2] w_z = {0, 0}"
    body = f"""g (float[4,2] x) => (float[4,2] y) <{A16}, {per_channel}, {bias}> {{ {qdq("x")}
    w_dq = DequantizeLinear<axis = 1>(w, w_s, w_z) b_dq = DequantizeLinear(b, b_s)
    m = Gemm(x_dq, w_dq, b_dq) y_q = QuantizeLinear(m, s, z) y = DequantizeLinear(y_q, s, z) }}"""
    reported = {code for code, _ in codes(body, tmp_path)}
    assert ("Q566" in reported) == (bias == BIAS)


def test_global_layers_are_counted_where_others_have_windows(tmp_path: Path) -> None:
    """The public report of Q403 is about [4, 257, 384] and [1, 1028, 384], as MatMul and Add without a Q/DQ pair."""
    body = f"""g (float[%d,3,2] x) => (float[1,%d,2] y) <{A16}, {WEIGHT}, {BIAS}, int64[3] all = {{1, -1, 2}}>
    {{ {qdq("x")} w_dq = DequantizeLinear(w, w_s, w_z) b_dq = DequantizeLinear(b, b_s) m = MatMul(x_dq, w_dq)
    a = Add(m, b_dq) {qdq("a")} r = Reshape(a_dq, all) {qdq("r")} v_dq = DequantizeLinear(w, w_s, w_z)
    n = MatMul(r_dq, v_dq) y_q = QuantizeLinear(n, s, z) y = DequantizeLinear(y_q, s, z) }}"""
    (finding,) = findings(body % (4, 12), tmp_path)
    assert (finding.code, finding.severity, finding.numbers) == ("Q403", Severity.NOTE, {"layers": 2.0})
    assert "not reproduced here" in finding.message
    assert findings(body % (1, 3), tmp_path) == ()


@pytest.mark.parametrize(
    ("block", "kernel", "code", "message"),
    [(4, 1, "Q203", "not a multiple of 8"), (8, 2, "Q203", "kernel larger"), (8, 1, "Q206", "runs in float")],
)
def test_block_weights_of_a_convolution(block: int, kernel: int, code: str, message: str, tmp_path: Path) -> None:
    area, size = kernel * kernel, 5 - kernel
    body = f"""g (float[1,8,4,4] x) => (float[1,1,{size},{size}] y) <{A16},
    int4[1,8,{kernel},{kernel}] w = {{{", ".join(["3"] * 8 * area)}}},
    float[1,{8 // block},{kernel},{kernel}] w_s = {{{", ".join(["0.1"] * (8 // block) * area)}}}>
    {{ {qdq("x")} w_dq = DequantizeLinear<axis = 1, block_size = {block}>(w, w_s) m = Conv(x_dq, w_dq)
    y_q = QuantizeLinear(m, s, z) y = DequantizeLinear(y_q, s, z) }}"""
    (finding,) = findings(body, tmp_path)
    assert finding.code == code
    assert message in finding.message


def test_per_channel_scales_at_an_input(tmp_path: Path) -> None:
    body = f"""g (float[1,4,2] x) => (float[1,4,2] y, float[1,4,2] v) <{A16}, float[2] c = {{0.1, 0.2}},
    uint16[2] c_z = {{0, 0}}> {{ {qdq("x")} c_q = QuantizeLinear<axis = 2>(x_dq, c, c_z)
    c_dq = DequantizeLinear<axis = 2>(c_q, c, c_z) r = Relu(c_dq) y_q = QuantizeLinear(r, s, z)
    y = DequantizeLinear(y_q, s, z) n = Neg(x_dq) v_q = QuantizeLinear(n, s, z) v = DequantizeLinear(v_q, s, z) }}"""
    (finding,) = findings(body, tmp_path)
    assert (finding.code, str(finding.place)) == ("Q201", "x")
    assert "input 'x' of Relu 'Relu/r' has more than one scale" in finding.message


def test_a_float_model_is_checked_with_the_op_table(tmp_path: Path) -> None:
    body = "g (float[1,4,8] x) => (float[1,4,8] y) { a = Relu(x) y = Tan(a) }"
    assert codes(body, tmp_path) == []
    assert codes(body, tmp_path, "qcs6490") == [("Q102", Severity.ERROR)]


@pytest.mark.parametrize(
    ("equation", "operand"),
    [
        ("ij,jk->ik", 1),
        ("id,jd->ij", 1),
        ("bhqd,bhkd->bhqk", 1),
        ("bhqk,bhkd->bhqd", 1),
        ("b h q k, b h k d -> b h q d", 1),
        ("bchq,bkhc->bkhq", 0),
        ("bhwc,hkc->bhwk", 1),
        ("bhwc,wkc->bhwk", None),
        ("BHik,BHkj->BHij", 1),
        ("bqhd,bkhd->bhqk", None),
        ("bqc,bchw->bqhw", None),
        ("bic,oc->bio", None),
        ("...ij,...jk->...ik", None),
        ("ij,jk", None),
        ("ii,ij->ij", None),
        ("ij->ji", None),
    ],
)
def test_equations_of_einsum_that_are_a_matmul(equation: str, operand: int | None) -> None:
    assert second_matmul_operand(equation) == operand


def test_a_float_einsum_may_become_mul_and_reduce_sum(tmp_path: Path) -> None:
    body = f"""g (float[1,4,4,8] a, float[4,4,8] b) => (float[1,4,4,4] y) <{A16}>
    {{ {qdq("a")} r = Relu(a_dq) {qdq("r")} y = Einsum<equation = "%s">(r_dq, b) }}"""
    assert codes(body % "bhwc,wkc->bhwk", tmp_path) == []
    assert codes(body % "bhwc,kwc->bhwk", tmp_path) == [("Q604", Severity.ERROR)]
