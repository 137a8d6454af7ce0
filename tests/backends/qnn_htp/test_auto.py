"""Mixed precision on the real compiler: the read-back shows every island in float16, and nothing else."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

import dovetail
from dovetail.backend import Outcome
from dovetail.finding import Status
from tests.networks.outlier_layers import outlier_layers, outlier_samples

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")


def test_the_island_is_in_float16_and_nothing_else_is(tmp_path: Path) -> None:
    """Beside a channel of 3000 even 16 bits are too few for the others."""
    ir.save(outlier_layers(3000, 3000), tmp_path / "model.onnx")
    result = dovetail.fit(
        tmp_path / "model.onnx",
        target="qnn-htp:sm8550",
        precision="auto",
        calibration=outlier_samples(40),
        min_sqnr=35.0,
        max_float=0.5,
        baselines="none",
        output=tmp_path / "run",
    )
    assert result.failed == ()
    for verdict in ("fidelity", "numerics", "accuracy", "budget"):
        assert result.verdicts[verdict].status is Status.PASS
    whole, *islands = [row for row in result.decisions if row.knob == "mixed"]
    assert whole.taken == "w8a16 + 2 in fp16"
    assert [(row.taken, row.place.nodes) for row in islands] == [("fp16", ("second", "scale"))]
    float16 = {str(row.edge or row.tensor) for row in result.read_back if row.detail.startswith("float16")}
    assert float16 == {"b/MatMul:0", "b/MatMul:1", "c", "third:1", "d"}
    integers = [row for row in result.read_back if str(row.edge or row.tensor) not in float16]
    assert len(integers) == 8
    assert {row.outcome for row in integers} == {Outcome.MATCHED}
