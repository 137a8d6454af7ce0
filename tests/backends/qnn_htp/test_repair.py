"""A model of another tool that the HTP compiler rejects, repaired with its scales so that it compiles and runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import dovetail
from dovetail import zoo
from dovetail.finding import Status
from dovetail.repairs import RECORD, Repair
from dovetail.targets.htp.chips import chip_named
from dovetail.targets.qnn_htp.naive import export_naive
from dovetail.targets.qnn_htp.options import read_options
from tests.equality import model_from, normal
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


@pytest.mark.parametrize("data", [None, {"x": normal(4, 1, 8, 10, 20)}], ids=["without data", "with data"])
def test_a_mean_of_a_padded_image_is_repaired(data: dict[str, np.ndarray] | None, tmp_path: Path) -> None:
    """HTP computes the mean without the padding (Q557); the mean of the image gets the scale of its multiple."""
    text = """g (float[1,8,10,20] x) => (float[1,8,1,1] y) <int64[8] pads = {0,0,1,1,0,0,1,1}>
        { c = Conv(x, w) p = Pad(c, pads) y = GlobalAveragePool(p) }"""
    onnx.save(ir.to_proto(model_from(text, w=normal(8, 8, 1, 1) / np.float32(3))), tmp_path / "model.onnx")
    samples = [{"x": sample} for sample in normal(4, 1, 8, 10, 20)]
    options = read_options(chip_named("sm8550"), {})
    assert export_naive(options, tmp_path / "model.onnx", "w8a16", samples, {}, tmp_path / "q.onnx") == ""
    result = dovetail.repair(tmp_path / "q.onnx", target="qnn-htp:sm8550", calibration=data, output=tmp_path / "run")
    assert all(result.verdicts[name].status is Status.PASS for name in ("compiled", "fidelity", "numerics"))
    if data is None:
        assert "scale times" in next(row.detail for row in result.plan if row.tensor == "y/GlobalAveragePool")
