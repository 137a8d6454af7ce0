"""What rule Q511 says about HTP in float16: tensors beyond 65504 saturate, sums inside an operator do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.finding import Status
from dovetail.report.result import Result

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

RMS_NORM = """g (float[1,16,64] x) => (float[1,16,64] y) <int64[1] last = {-1},
 float e = {0.00001}, float k = {0.015625}>
{ z = SCALED(x) q = Mul(z, z) v = ReduceMean(q, last) a = Add(v, e) s = Sqrt(a) y = Div(z, s) }"""
PLAIN, SCALED = RMS_NORM.replace("SCALED(x)", "Neg(x)"), RMS_NORM.replace("SCALED(x)", "Mul(x, k)")
LAYER_NORM = """g (float[1,16,64] x) => (float[1,16,64] y) <int64[1] last = {-1}, float e = {0.00001}, float two = {2}>
{ m = ReduceMean(x, last) d = Sub(x, m) q = Pow(d, two) v = ReduceMean(q, last) a = Add(v, e) s = Sqrt(a)
  y = Div(d, s) }"""


def fitted(text: str, largest: float, folder: Path, precision: str = "fp16", **options: object) -> Result:
    """The text's graph on inputs up to a magnitude."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    noise = np.random.default_rng(0).standard_normal((2, 1, 16, 64)).astype(np.float32)
    return dovetail.fit(
        model, target="qnn-htp:sm8550", precision=precision, calibration={"x": noise * (largest / np.abs(noise).max())},
        output=folder / "run", baselines="none", **options,
    )  # fmt: skip


def sqnr_db(result: Result) -> float:
    """The SQNR of the emulated output against float."""
    return (result.metrics.sqnr_db.target_vs_float or {})["y"]


def reported(result: Result) -> set[str]:
    """The tensors that Q511 reports."""
    return {str(finding.place) for finding in result.findings if finding.code == "Q511"}


def test_a_norm_of_several_operators_saturates_and_is_reported(tmp_path: Path) -> None:
    result = fitted(PLAIN, 4000, tmp_path)
    assert sqnr_db(result) < 5
    assert result.verdicts["numerics"].status is Status.FAIL
    assert (result.metrics.sqnr_db.simulation_vs_float["y"] or 0) > 60  # the simulation does not show it
    assert "q" in reported(result)


def test_a_square_in_integers_saturates_between_float16_operators(tmp_path: Path) -> None:
    result = fitted(PLAIN, 4000, tmp_path, keep=["q=w8a16"])
    assert sqnr_db(result) < 5
    assert "q" in reported(result)


@pytest.mark.parametrize(
    ("text", "largest", "precision"),
    [(PLAIN, 200, "fp16"), (SCALED, 4000, "fp16"), (PLAIN, 4000, "w8a16"), (LAYER_NORM, 4000, "fp16")],
    ids=("small", "scaled", "integers", "fused"),
)
def test_what_is_not_reported_is_accurate(text: str, largest: float, precision: str, tmp_path: Path) -> None:
    result = fitted(text, largest, tmp_path, precision)
    assert sqnr_db(result) > 55
    assert reported(result) == set()


L2 = "g (float[1,16,64] x) => (float[1,16,1] y) <int64[1] last = {-1}> { p = Abs(x) y = ReduceL2(p, last) }"
MEAN = L2.replace("ReduceL2", "ReduceMean")


@pytest.mark.parametrize(("largest", "saturates"), [(80, False), (250, True)])
def test_a_reduce_l2_saturates_where_its_sum_of_squares_does(largest: float, saturates: bool, tmp_path: Path) -> None:
    result = fitted(L2, largest, tmp_path)
    assert (sqnr_db(result) < 40) is saturates
    assert reported(result) == ({"y"} if saturates else set())


def test_the_sums_of_a_mean_do_not_saturate(tmp_path: Path) -> None:
    result = fitted(MEAN, 10_000, tmp_path)
    assert sqnr_db(result) > 60
    assert reported(result) == set()


ORDER = """g (float[1,16,64] x) => (int64[1,16,4] y) <float limit = {0}, float low = {-100000}, int64[1] k = {4}>
{ c = Less(x, limit) m = Where(c, low, x) v, y = TopK(m, k) }"""


def test_a_topk_of_masked_scores_is_exact_and_not_reported(tmp_path: Path) -> None:
    result = fitted(ORDER, 4, tmp_path)
    assert sqnr_db(result) > 100
    assert reported(result) == set()
