"""What the real compiler refuses, in its words, with the node and what to do: one case per row of the meanings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dovetail.finding import Severity
from dovetail.targets.qnn_htp.log_patterns import NOT_STARTED, REFUSALS, WARNINGS
from tests.backends.qnn_htp.real_compiler import ERF, RELU, compile_text, options, wheel_without

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

NUMBERS = "float s = {0.1}, uint16 z = {32768}, int16 zs = {0}, int16 za = {5}, int32 zi = {0}"


def matmul(second: str) -> str:
    """A product of two activations, the second stored with a zero point of its own."""
    return f"""g (float[1,4,4] x, float[1,4,4] k) => (float[1,4,4] y) <{NUMBERS}> {{
      xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)
      kq = QuantizeLinear(k, s, {second})  kd = DequantizeLinear(kq, s, {second})
      [product] m = MatMul(xd, kd)  mq = QuantizeLinear(m, s, z)  y = DequantizeLinear(mq, s, z) }}"""


@dataclasses.dataclass(frozen=True)
class Case:
    """A graph that is refused: the node that is named, and words of the compiler."""

    body: str
    node: str
    words: str
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
        f"""g (float[1,1,1,900000] x) => (float[1,1,1,900000] y) <{NUMBERS}> {{
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
        f"""g (float[1,4] x) => (float[1,4] y) <{NUMBERS}, int32[4] b = {{1,2,3,4}}> {{
          xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)  [bias] bd = DequantizeLinear(b, s, zi)
          [sum] a = Add(xd, bd)  aq = QuantizeLinear(a, s, z)  y = DequantizeLinear(aq, s, z) }}""",
        "bias",
        "Requested I/O datatype set: in[0]:QNN_DATATYPE_SFIXED_POINT_32 out[0]:QNN_DATATYPE_FLOAT_32",
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


def test_every_meaning_has_a_case() -> None:
    assert list(CASES) == [row.pattern for row in REFUSALS]


@pytest.mark.parametrize("pattern", CASES)
def test_a_refusal_names_the_node_the_reason_and_what_to_do(pattern: str, tmp_path: Path) -> None:
    case = CASES[pattern]
    result = compile_text(case.body, tmp_path, options(case.chip, **case.option))
    found = {str(finding.place): finding for finding in result.findings}
    assert case.words in found[case.node].message
    row = next(row for row in REFUSALS if row.pattern == pattern)
    assert (found[case.node].code, found[case.node].fix) == (row.code, row.fix)
    assert found[case.node].severity is Severity.ERROR
    assert "validateOpConfig failed" not in found[case.node].message  # said of every node, tells nothing
    assert result.finished
    assert result.error == f"{result.findings[0].place}: {result.findings[0].message}"


def test_a_node_without_a_name_is_told_by_the_line_of_the_log(tmp_path: Path) -> None:
    result = compile_text("g (float[1,8] x) => (float[1,8] y) { y = Erf(x) }", tmp_path)
    (finding,) = result.findings
    assert str(finding.place) == "a node without a name"
    assert "the log says: " in finding.message
    assert "Validation FAILED for 1 nodes in OrtNodeUnit (Erf)" in finding.message


def test_an_error_in_a_graph_that_was_taken_is_a_warning(tmp_path: Path) -> None:
    numbers = "<float fine = {0.0001}, float coarse = {1.3}, uint16 z = {32768}>"
    body = f"""g (float[1,8,16] x) => (float[1,16,16] y) {numbers} {{
      xq = QuantizeLinear(x, coarse, z)  xd = DequantizeLinear(xq, coarse, z)  [act] a = Relu(xd)
      aq = QuantizeLinear(a, fine, z)  ad = DequantizeLinear(aq, fine, z)  [both] c = Concat <axis = 1> (xd, ad)
      cq = QuantizeLinear(c, fine, z)  y = DequantizeLinear(cq, fine, z) }}"""
    result = compile_text(body, tmp_path)
    assert result.error == ""
    (finding,) = result.findings
    assert "scale too large for requant qu16->qu16: 13000.0" in finding.message
    assert (finding.code, finding.fix) == (WARNINGS[0].code, WARNINGS[0].fix)
    assert finding.severity is Severity.WARNING


def test_a_graph_that_was_taken_without_complaint_has_no_findings(tmp_path: Path) -> None:
    result = compile_text(RELU, tmp_path)
    assert (result.error, result.findings, result.notes) == ("", (), ())


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("row", range(len(NOT_STARTED)))
def test_a_compiler_that_does_not_start_has_refused_nothing(
    row: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern, sentence = NOT_STARTED[row]
    asked = options()
    if "socModel" in pattern:
        asked = options("soc999/v75")
    elif "load backend" in pattern:
        asked = options(memory_limit_mb="600")
    elif "shared object" in pattern:
        monkeypatch.setenv("PYTHONPATH", str(wheel_without("libonnxruntime_providers_qnn.so", tmp_path)))
    else:
        asked = dataclasses.replace(asked, provider={"htp_arch": "73", "enable_htp_fp16_precision": "1"})
    result = compile_text(RELU, tmp_path, asked)
    assert not result.finished
    assert result.error.startswith(sentence)
    assert "; it says: " in result.error
