"""RT-DETRv2 and RF-DETR on the real HTP compiler, each at one precision; in all: python -m bench.zoo detectors."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("onnxscript", reason="needs the package onnxscript")
pytest.importorskip("transformers", reason="needs the package transformers")
pytest.importorskip("PIL", reason="needs the package pillow")

from tests.networks import htp_checks
from tests.networks.detectors import NETWORKS

PRECISION = {"RT-DETRv2": "w8a16", "RF-DETR": "w8a8"}


@pytest.mark.parametrize("target", [htp_checks.PHONE, htp_checks.AUTOMOTIVE])
@pytest.mark.parametrize("name", NETWORKS)
def test_detectors_run_as_planned(name: str, target: str, tmp_path: Path) -> None:
    htp_checks.check_detector(name, PRECISION[name], target, tmp_path / "run")
