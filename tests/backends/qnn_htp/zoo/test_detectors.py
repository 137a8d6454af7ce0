"""RT-DETRv2 and RF-DETR on the real HTP compiler, each at one precision and for one chip.

At all precisions, for both chips: python -m bench.zoo detectors.
"""

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

RUNS = {"RT-DETRv2": ("w8a16", htp_checks.AUTOMOTIVE), "RF-DETR": ("w8a8", htp_checks.PHONE)}


@pytest.mark.parametrize("name", NETWORKS)
def test_detectors_run_as_planned(name: str, tmp_path: Path) -> None:
    precision, target = RUNS[name]
    htp_checks.check_detector(name, precision, target, tmp_path / "run")
