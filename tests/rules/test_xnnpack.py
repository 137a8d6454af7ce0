"""Rules of XNNPACK that report every layer or tensor of a kind in one finding."""

from __future__ import annotations

from pathlib import Path

from dovetail import rule_docs as docs
from dovetail.finding import Finding
from tests.rules.cases import findings_in

HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'
LAYERS = """# target: xnnpack
HEAD
g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float s = {0.05}, int8 z = {0}, float[2] c_s = {0.05, 0.1},
 int8[2] c_z = {0, 0}, int8[2,2,1,1] w = {1, 2, 3, 4}, int8[4,4] v = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}>
{ w_d = DequantizeLinear(w, s, z) c_d = DequantizeLinear<axis=0>(w, c_s, c_z) v_d = DequantizeLinear(v, s, z)
  a = Conv(x, w_d) b = Sigmoid(a) c = Conv(b, w_d) d = Sigmoid(c) e = Conv(d, c_d) f = Sigmoid(e) y = MatMul(f, v_d) }
""".replace("HEAD\n", HEAD)


def found(code: str, text: str, folder: Path) -> list[Finding]:
    return [finding for finding in findings_in(text, folder) if finding.code == code]


def test_layers_of_a_kind_are_one_finding(tmp_path: Path) -> None:
    rejected, portable = found("Q134", LAYERS, tmp_path)
    assert (str(rejected.place), rejected.numbers) == ("Conv/e", {"layers": 2.0})
    assert "the model cannot be lowered" in rejected.message
    assert (str(portable.place), portable.numbers) == ("Conv/a", {"layers": 2.0})
    assert "they are left to the portable kernels" in portable.message


def test_a_tensor_that_is_uint8_only_for_one_reader_counts_once(tmp_path: Path) -> None:
    (finding,) = found("Q132", docs.case_texts("Q132", "bad")["Q132.bad.6.onnxtxt"], tmp_path)
    assert (str(finding.place), finding.numbers) == ("x", {"tensors": 1.0})
