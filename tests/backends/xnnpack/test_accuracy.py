"""What is measured if the accuracy is low, on a plan with signed integers and shared scales."""

from __future__ import annotations

from pathlib import Path

import pytest

import dovetail
from dovetail import zoo

pytest.importorskip("executorch", reason="needs the package executorch")


def test_the_tensors_that_lose_most_are_named_with_a_precision_of_the_target(tmp_path: Path) -> None:
    shipped = zoo.load("vit_digits")
    result = dovetail.fit(
        shipped.model_path,
        target="xnnpack",
        calibration=shipped.calib(),
        min_sqnr=90,
        baselines="none",
        output=tmp_path / "run",
    )
    assert result.failed == ("accuracy",)
    assert len(result.metrics.losses) >= 5
    (finding,) = [finding for finding in result.findings if finding.code == "Q505"]
    assert finding.fix.startswith("keep the tensors that lose most SQNR in fp32: --keep ")
    assert "`dovetail sensitivity` measures" in finding.message
    assert "--precision auto searches for what needs a wider one" in finding.message
