"""What the real compiler rejects, with its message, the node and the fix: one case per row of the log patterns."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dovetail.finding import Severity
from dovetail.targets.htp.rules.compiler import DTYPES_NOT_SUPPORTED
from dovetail.targets.qnn_htp.log_patterns import NO_KERNEL_FIX, NOT_STARTED, REJECTIONS, WARNINGS
from tests.backends.qnn_htp.real_compiler import ERF, RELU, compile_text, options, wheel_without

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

QPARAMS = "float s = {0.1}, uint16 z = {32768}, int16 zs = {0}, int16 za = {5}, int32 zi = {0}"


def matmul(second: str) -> str:
    """A MatMul of two activations, the second quantized with the given zero point."""
    return f"""g (float[1,4,4] x, float[1,4,4] k) => (float[1,4,4] y) <{QPARAMS}> {{
      xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)
      kq = QuantizeLinear(k, s, {second})  kd = DequantizeLinear(kq, s, {second})
      [product] m = MatMul(xd, kd)  mq = QuantizeLinear(m, s, z)  y = DequantizeLinear(mq, s, z) }}"""


@dataclasses.dataclass(frozen=True)
class Case:
    """A graph that is rejected, the rejected node, and a part of the compiler's message."""

    body: str
    node: str
    message: str
    chip: str = "sm8550"
    option: dict[str, str] = dataclasses.field(default_factory=dict)


CASES = {
    "could not create op": Case(
        "g (float[1,8,16] x) => (float[1,8,16] y) { [act] y = Gelu(x) }",
        "act",
        "could not create op: q::QNN_Gelu for PlainFloat_TCM",
        chip="v73",
    ),
    "not sufficiently tiled to fit in TCM": Case(
        f"""g (float[1,1,1,900000] x) => (float[1,1,1,900000] y) <{QPARAMS}> {{
          [store] xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)  [soft] a = Softmax(xd)
          aq = QuantizeLinear(a, s, z)  y = DequantizeLinear(aq, s, z) }}""",
        "store",
        "Requires 3600384 bytes",
        option={"vtcm_mb": "1"},
    ),
    "incorrect Rank 5": Case(
        """g (float[1,2,2,2,4] x) => (float[1,2,2,2,4] y) <float[4] w = {1,1,1,1}>
        { [norm] y = LayerNormalization <axis = -1> (x, w) }""",
        "norm",
        "has incorrect Rank 5",
    ),
    "incorrect Rank": Case(
        "g (float[1,2,2,2,2,2] x) => (float[1,2,2,2,2,2] y) { [turn] y = Transpose <perm = [0,2,1,3,4,5]> (x) }",
        "turn",
        "has incorrect Rank 6",
    ),
    "are not supported by QNN EP": Case(ERF, "curve", "Operators of type `Erf` are not supported"),
    "per-channel quant": Case(
        """g (float[1,2,4] x) => (float[1,2,4] y) <float[2] s = {0.1,0.2}, uint8[2] z = {128,128}> {
          [store] xq = QuantizeLinear <axis = 1> (x, s, z)  [load] xd = DequantizeLinear <axis = 1> (xq, s, z)
          [act] y = Relu(xd) }""",
        "store",
        "standalone Q op with per-channel quantization",
    ),
    "along the last axis": Case(
        """g (float[1,2,4] x) => (float[1,2,4] y) <float[2,4] w = {1,1,1,1,1,1,1,1}>
        { [norm] y = LayerNormalization <axis = -2> (x, w) }""",
        "norm",
        "only supports normalization along the last axis",
    ),
    "unsupported equation": Case(
        """g (float[1,4,2,8] x, float[1,4,2,8] k) => (float[1,2,4,4] y)
        { [scores] y = Einsum <equation = "bqhd,bkhd->bhqk"> (x, k) }""",
        "scores",
        "unsupported equation: bqhd,bkhd->bhqk",
    ),
    "master op validator .*MatMul failed": Case(
        """g (float[1,4,8] x, float[1,8,2,2] k) => (float[1,4,2,2] y)
        { [masks] y = Einsum <equation = "bqc,bchw->bqhw"> (x, k) }""",
        "masks",
        "MatMul failed 3110",
    ),
    r"incorrect Value -?\d+, expected equal to": Case(matmul("za"), "product", "expected equal to 0"),
    r"incorrect Value \d+, expected >= \d+": Case(matmul("zs"), "product", "Value 69, expected >= 73", chip="v69"),
    "Unsupported input/output datatypes": Case(
        f"""g (float[1,4] x) => (float[1,4] y) <{QPARAMS}, int8[4,4] w = {{{",".join(["1"] * 16)}}}, int8 zw = {{0}}> {{
          xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)  wd = DequantizeLinear(w, s, zw)
          [layer] a = Gemm(xd, wd)  r = Relu(a)  rq = QuantizeLinear(r, s, z)  y = DequantizeLinear(rq, s, z) }}""",
        "layer",
        "Requested I/O datatype set",
    ),
    "SocModel doesn't support FP16": Case(
        "g (float16[1,8] x) => (float16[1,8] y) { [act] y = Relu(x) }", "act", "doesn't support FP16", chip="qcs6490"
    ),
    "NonMaxSuppression: max_output_boxes_per_class": Case(
        "g (float[1,6,4] b, float[1,1,6] s) => (int64[n,3] y) { [keep] y = NonMaxSuppression(b, s) }",
        "keep",
        "must be provided",
    ),
    "output shape must be static|Cannot get shape": Case(
        "g (float[1,8] x) => (int64[2,n] y) { [act] a = Relu(x)  [find] y = NonZero(a) }",
        "find",
        "output shape must be static",
    ),
}


def test_every_log_pattern_has_a_case() -> None:
    assert list(CASES) == [row.pattern for row in REJECTIONS]
    assert {row.code for row in REJECTIONS} == {"Q802", "Q803", "Q804", "Q805", "Q806"}
    assert {row.code for row in WARNINGS} == {"Q809"}


@pytest.mark.parametrize("pattern", CASES)
def test_a_rejected_node_is_reported_with_the_reason_and_the_fix(pattern: str, tmp_path: Path) -> None:
    case = CASES[pattern]
    result = compile_text(case.body, tmp_path, options(case.chip, **case.option))
    finding = {str(finding.place): finding for finding in result.findings}[case.node]
    assert case.message in finding.message
    row = next(row for row in REJECTIONS if row.pattern == pattern)
    assert (finding.code, finding.fix) == (row.code, row.fix)
    assert finding.severity is Severity.ERROR
    assert "validateOpConfig failed" not in finding.message  # logged for every node
    assert result.finished
    assert result.error == f"{result.findings[0].place}: {result.findings[0].message}"


LEFT_OVER = {
    "Add": (
        f"""g (float[1,4] x) => (float[1,4] y) <{QPARAMS}, int32[4] b = {{1,2,3,4}}> {{
          xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)  [left] bd = DequantizeLinear(b, s, zi)
          [op] a = Add(xd, bd)  aq = QuantizeLinear(a, s, z)  y = DequantizeLinear(aq, s, z) }}""",
        "uint16 x int32 -> uint16",
    ),
    "Conv": (
        f"""g (float[1,1,4,4] x) => (float[1,2,4,4] y)
        <{QPARAMS}, float[2] sw = {{0.1, 0.2}}, int8[2] zw = {{0, 0}}, int8[2,1,1,1] w = {{5, 7}}> {{
          xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)
          [left] wd = DequantizeLinear <axis = 0> (w, sw, zw)
          [op] c = Conv(xd, wd)  [act] a = Relu(c)  aq = QuantizeLinear(a, s, z)  y = DequantizeLinear(aq, s, z) }}""",
        "uint16 x int8 per channel -> float, which Relu 'act' reads",
    ),
}


@pytest.mark.parametrize("operator", LEFT_OVER)
def test_an_operator_without_a_kernel_is_reported_not_the_dequantize_that_is_left_over(
    operator: str, tmp_path: Path
) -> None:
    body, tried = LEFT_OVER[operator]
    result = compile_text(body, tmp_path)
    (finding,) = result.findings
    assert (str(finding.place), finding.code, finding.fix) == ("op", DTYPES_NOT_SUPPORTED, NO_KERNEL_FIX)
    assert finding.message.startswith(f"HTP has no kernel for {operator} with {tried}; ")


def test_a_node_without_a_name_is_reported_with_the_log_line(tmp_path: Path) -> None:
    result = compile_text("g (float[1,8] x) => (float[1,8] y) { y = Erf(x) }", tmp_path)
    (finding,) = result.findings
    assert str(finding.place) == "an unnamed node"
    assert "the log line is: " in finding.message
    assert "Validation FAILED for 1 nodes in OrtNodeUnit (Erf)" in finding.message


def test_an_error_in_an_accepted_graph_is_a_warning(tmp_path: Path) -> None:
    qparams = "<float fine = {0.0001}, float coarse = {1.3}, uint16 z = {32768}>"
    body = f"""g (float[1,8,16] x) => (float[1,16,16] y) {qparams} {{
      xq = QuantizeLinear(x, coarse, z)  xd = DequantizeLinear(xq, coarse, z)  [act] a = Relu(xd)
      aq = QuantizeLinear(a, fine, z)  ad = DequantizeLinear(aq, fine, z)  [both] c = Concat <axis = 1> (xd, ad)
      cq = QuantizeLinear(c, fine, z)  y = DequantizeLinear(cq, fine, z) }}"""
    result = compile_text(body, tmp_path)
    assert result.error == ""
    (finding,) = result.findings
    assert finding.message.startswith("the compiler accepted the graph, but logged the error: ")
    assert "scale too large for requant qu16->qu16: 13000.0" in finding.message
    assert (finding.code, finding.fix) == (WARNINGS[0].code, WARNINGS[0].fix)
    assert finding.severity is Severity.WARNING


def test_a_graph_that_compiles_without_errors_has_no_findings(tmp_path: Path) -> None:
    result = compile_text(RELU, tmp_path)
    assert (result.error, result.findings, result.notes) == ("", (), ())


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("row", range(len(NOT_STARTED)))
def test_a_compiler_that_does_not_start_rejects_no_node(
    row: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern, reason = NOT_STARTED[row]
    htp_options = options()
    if "socModel" in pattern:
        htp_options = options("soc999/v75")
    elif "load backend" in pattern:
        htp_options = options(memory_limit_mb="600")
    elif "shared object" in pattern:
        monkeypatch.syspath_prepend(wheel_without("libonnxruntime_providers_qnn.so", tmp_path))
    else:
        htp_options = dataclasses.replace(htp_options, provider={"htp_arch": "73", "enable_htp_fp16_precision": "1"})
    result = compile_text(RELU, tmp_path, htp_options)
    assert not result.finished
    assert result.error.startswith(reason)
    assert "; its error message is: " in result.error
