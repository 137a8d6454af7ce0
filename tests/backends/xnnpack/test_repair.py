"""A model with one scale per weight, as ONNX Runtime's quantizer writes by default, repaired for XNNPACK."""

from __future__ import annotations

from pathlib import Path

import pytest

import dovetail
from dovetail import zoo
from dovetail.encoding import Granularity
from dovetail.finding import Status

pytest.importorskip("executorch", reason="needs the package executorch")
REPROS = Path(__file__).parents[2] / "repros"


def test_weights_with_one_scale_compile(tmp_path: Path) -> None:
    shipped = zoo.load("vit_digits")
    images = {"images": shipped.calib()["images"][:16]}
    result = dovetail.repair(
        REPROS / "dig_def.onnx",
        target="xnnpack",
        baselines="none",
        calibration=images,
        output=tmp_path / "run",
        float_model=shipped.model_path,
    )
    for name in ("normalized", "repaired", "compiled", "fidelity", "numerics"):
        assert result.verdicts[name].status is Status.PASS, result.verdicts[name].reason
    # Linear layers that are quantized at run time have the one scale of the file for every channel.
    rows = [row for row in result.plan if row.granularity is Granularity.AXIS and row.scale_from == "given"]
    assert rows
    assert all(isinstance(row.scale, list) and len(set(row.scale)) == 1 for row in rows)
