"""w16a16: 16-bit weights with one scale, from v73 on; the compiler's refusal before; what scales per channel cost."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from dovetail import zoo
from dovetail.api import fit
from dovetail.backend import MODEL
from dovetail.encoding import Granularity
from dovetail.errors import InputError
from dovetail.finding import Status
from dovetail.op_support import A16, B32, F16, W8A16, W16, W16A16, OpSupport, Precision, bias, const, signature
from dovetail.target import Target
from dovetail.targets import open_target
from tests.backends.qnn_htp.agreement import agreement_db
from tests.backends.qnn_htp.linear_layers import LINEAR, linear
from tests.changed import with_op
from tests.equality import run, sqnr_db
from tests.planning import graph, noise, planned

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

DEPTHWISE = """
g (float[1,8,12,12] x) => (float[1,8,12,12] z)
<float[8,1,3,3] w = {{{weight}}}, float[8] b = {{1, 2, 3, 4, -1, -2, -3, -4}}>
{{ y = Conv<group = 8, pads = [1,1,1,1]>(x, w, b)  r = Relu(y)  z = Neg(r) }}
"""


def emulated_db(body: str, target: Target, precision: Precision, folder: Path) -> float:
    """The SQNR of the emulator's output against the float model."""
    model = graph(body)
    data = noise(model)
    compiled = target.backend.compile(
        target.backend.emit(model, planned(model, target, precision, data=data), folder), folder
    )
    assert compiled.error == ""
    sample = {name: array[0] for name, array in data.items()}
    (outputs,) = list(target.backend.runner.run(compiled, [sample]))
    return min(sqnr_db(expected, outputs[name]) for name, expected in run(model, sample).items())


@pytest.mark.parametrize("op", LINEAR)
def test_16_bit_weights_are_more_accurate_than_8_bit_ones(op: str, tmp_path: Path) -> None:
    target, body = open_target("qnn-htp:sm8550"), linear(op, np.ones(8))
    assert emulated_db(body, target, W16A16, tmp_path) > 70
    assert emulated_db(body, target, W8A16, tmp_path) < 60


def test_a_depthwise_conv_has_16_bit_weights_too(tmp_path: Path) -> None:
    numbers = ", ".join(f"{number:.6g}" for number in np.random.default_rng(0).standard_normal(72))
    body = DEPTHWISE.format(weight=numbers)
    assert agreement_db(graph(body), open_target("qnn-htp:sm8550"), W16A16, noise(graph(body)), tmp_path) > 70


def _per_channel(target: Target, op: str) -> tuple[Target, Precision]:
    """The target with 16-bit weights that have one scale per channel."""
    weight = dataclasses.replace(W16, granularity=Granularity.AXIS)
    operands = (A16, const(weight)) if op == "MatMul" else (A16, const(weight), bias(B32))
    support = OpSupport((signature(*operands, out=A16), signature(F16, F16, F16, out=F16)))
    return with_op(target, op, support), Precision("per channel", A16, weight)


@pytest.mark.parametrize("op", LINEAR)
def test_scales_per_channel_are_accepted_and_less_accurate(op: str, tmp_path: Path) -> None:
    """Why the table has one scale per weight; if this fails, the compiler has improved, and it should change."""
    target, precision = _per_channel(open_target("qnn-htp:sm8550"), op)
    assert emulated_db(linear(op, np.ones(8)), target, precision, tmp_path) < 72


@pytest.mark.parametrize(("chip", "architecture"), [("qcs6490", 68), ("sm8450", 69)])
def test_before_v73_the_compiler_refuses_them(chip: str, architecture: int, tmp_path: Path) -> None:
    old, new = open_target(f"qnn-htp:{chip}"), open_target("qnn-htp:sm8550")
    forced = with_op(old, "Conv", new.table.ops["Conv"])
    model = graph(linear("Conv", np.ones(8)))
    plan = planned(model, forced, W16A16)
    compiled = old.backend.compile(old.backend.emit(model, plan, tmp_path), tmp_path)
    refusal = f"has incorrect Value {architecture}, expected >= 73"
    assert refusal in compiled.error
    assert refusal in old.table.unavailable["w16a16"]
    shipped = zoo.load("vit_digits")
    with pytest.raises(InputError, match=f"w16a16 is not available .*{refusal}"):
        fit(shipped.model_path, target=old.name, precision="w16a16", calibration="random", output=tmp_path / "run")


def test_the_shipped_detector_in_w16a16(tmp_path: Path) -> None:
    shipped = zoo.load("detector_scenes")
    data = {"calibration": shipped.calib(), "baselines": "none", "target": "qnn-htp:sm8550"}
    result = fit(shipped.model_path, precision="w16a16", output=tmp_path / "run", **data)
    assert {name for name, verdict in result.verdicts.items() if verdict.status is Status.FAIL} == set()
    assert result.verdicts["fidelity"].status is Status.PASS
    weights = [row for row in result.plan if row.edge is not None and row.dtype == "int8"]
    assert weights == []
    assert min((result.metrics.sqnr_db.target_vs_float or {}).values()) > 56  # 49.5 in w8a16
    assert (tmp_path / "run" / f"{MODEL}.onnx").exists()
