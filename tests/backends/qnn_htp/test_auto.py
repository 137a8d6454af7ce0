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
    assert whole.taken == "w8a16 second-order + 2 in fp16"
    assert [(row.taken, row.place.nodes) for row in islands] == [("fp16", ("second", "scale"))]
    float16 = {str(row.edge or row.tensor) for row in result.read_back if row.detail.startswith("float16")}
    assert float16 == {"b/MatMul:0", "b/MatMul:1", "c", "third:1", "d"}
    integers = [row for row in result.read_back if str(row.edge or row.tensor) not in float16]
    assert len(integers) == 8
    assert {row.outcome for row in integers} == {Outcome.MATCHED}


def test_auto_w4_has_the_weights_that_matter_in_8_bits(tmp_path: Path) -> None:
    """Without a channel that is larger than others, all of the noise is that of the weights."""
    ir.save(outlier_layers(1, 1), tmp_path / "model.onnx")
    result = dovetail.fit(
        tmp_path / "model.onnx",
        target="qnn-htp:v68",
        precision="auto-w4",
        calibration=outlier_samples(40),
        min_sqnr=20.0,
        baselines="none",
        output=tmp_path / "run",
    )
    assert result.failed == ()
    assert result.verdicts["fidelity"].status is Status.PASS
    whole = next(row for row in result.decisions if row.knob == "mixed" and row.is_whole)
    assert {row.label.split()[0] for row in whole.alternatives} == {"w4a16", "w8a8", "w8a16"}  # v68 has no float16
    mixtures = {row.label: row.figures["sqnr_db"] for row in whole.alternatives if "in w8a16" in row.label}
    figures = {row.label: row.figures["sqnr_db"] for row in whole.alternatives}
    w4 = [db for label, db in mixtures.items() if label.startswith("w4a16")]
    assert w4 == sorted(w4)
    assert figures["w4a16"] < w4[0] < w4[-1] <= figures["w8a16"] + 1
