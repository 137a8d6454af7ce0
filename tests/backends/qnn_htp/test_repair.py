"""A model of another tool that the HTP compiler rejects, repaired with its scales so that it compiles and runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import dovetail
from dovetail import zoo
from dovetail.finding import Status
from dovetail.repairs import RECORD, Repair
from tests.networks.quantized_elsewhere import calibration, quantized_elsewhere

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")


def test_a_rejected_model_compiles_after_repair(tmp_path: Path) -> None:
    path = quantized_elsewhere(tmp_path / "quantized.onnx", signed=False)
    result = dovetail.repair(path, target="qnn-htp:sm8550", calibration=calibration(), output=tmp_path / "run")
    for name in ("compiled", "fidelity", "numerics"):
        assert result.verdicts[name].status is Status.PASS, result.verdicts[name].reason
    record = msgspec.json.decode((tmp_path / "run" / RECORD).read_bytes(), type=Repair)
    assert record.as_given[0].startswith("not compiled: blocks.0.norm1/LayerNormalization")
    assert len(record.kept) > 40
    assert record.missing == {}


def test_the_output_of_the_qnn_helper_is_repaired(tmp_path: Path) -> None:
    """16-bit activations and asymmetric 8-bit weights with one scale: their step is kept in symmetric int8."""
    shipped = zoo.load("vit_digits")
    result = dovetail.repair(
        Path(__file__).parents[2] / "repros/dig_qnn_a16w8.onnx",
        target="qnn-htp:sm8550",
        calibration={"images": shipped.calib()["images"][:32]},
        output=tmp_path / "run",
        float_model=shipped.model_path,
    )
    assert result.precision == "w8a16"
    for name in ("normalized", "repaired", "compiled", "fidelity", "numerics"):
        assert result.verdicts[name].status is Status.PASS, result.verdicts[name].reason
    assert result.verdicts["repaired"].numbers["as given: logits"] > 45
