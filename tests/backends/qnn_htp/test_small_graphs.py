"""Small graphs that the compiler rejected, ran in another precision than planned, or computed wrongly: all verdicts
pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.config import options_from
from dovetail.finding import Status
from dovetail.job import prepare
from dovetail.pipeline import fit
from tests.equality import model_from, normal
from tests.planning import noise

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

SHAPE = "float[1,8,13,10]"


def behind_conv(nodes: str, output: str = SHAPE) -> ir.Model:
    text = f"g ({SHAPE} x) => ({output} y) <float one = {{1}}> {{ c = Conv(x, w) {nodes} }}"
    return model_from(text, w=normal(8, 8, 1, 1) / np.float32(3))


def depthwise_transpose() -> ir.Model:
    text = f"g ({SHAPE} x) => ({SHAPE} y) {{ y = ConvTranspose<group=8, pads=[1,1,1,1]>(x, w, b) }}"
    return model_from(text, w=normal(8, 1, 3, 3), b=normal(8))


def dead_branch() -> ir.Model:
    """A squeeze-excite bottleneck that is always zero: the second convolution computes its bias."""
    text = f"g ({SHAPE} x) => ({SHAPE} y) <float[8] low = {{{','.join(['-90'] * 8)}}}> {{ c = Conv(x, w, low) "
    text += "r = Relu(c) y = Conv(r, v, b) }"
    return model_from(text, w=normal(8, 8, 1, 1), v=normal(8, 8, 1, 1), b=normal(8))


CASES = {
    "mish": behind_conv("y = Mish(c)"),
    "reciprocal": behind_conv("a = Abs(c) s = Add(a, one) r = Sqrt(s) i = Reciprocal(r) y = Mul(c, i)"),
    "global max pool": behind_conv("y = GlobalMaxPool(c)", "float[1,8,1,1]"),
    "elu": behind_conv("y = Elu(c)"),
    "depthwise transposed convolution": depthwise_transpose(),
    "dead branch": dead_branch(),
}


@pytest.mark.parametrize("model", CASES.values(), ids=CASES.keys())
def test_all_verdicts_pass(model: ir.Model, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    ir.save(model, path)
    options = options_from({"target": "qnn-htp:sm8550", "precision": "w8a16", "baselines": "none"})
    result = fit(prepare(path, options, calibration=noise(model)), tmp_path / "run")
    statuses = {name: result.verdicts[name].status for name in ("normalized", "compiled", "fidelity", "numerics")}
    assert set(statuses.values()) == {Status.PASS}
    assert not [decision for decision in result.decisions if decision.knob == "islands"]
