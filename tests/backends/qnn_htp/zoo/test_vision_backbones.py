"""Vision backbones on the real HTP compiler, each at one precision; in all of them: python -m bench.zoo backbones."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("onnxscript", reason="needs the package onnxscript")
pytest.importorskip("transformers", reason="needs the package transformers")
pytest.importorskip("PIL", reason="needs the package pillow")

from tests.networks import htp_checks
from tests.networks.backbones import NETWORKS

PRECISION = {"vit": "w8a16", "deit": "w8a8", "dinov2": "w8a8", "swin": "w8a8", "segformer": "w8a16"}


def test_the_backbone_of_rf_detr_at_its_sizes(tmp_path: Path) -> None:
    """On the automotive part; in other precisions and on a phone: python -m bench.htp detectors."""
    htp_checks.check_large_backbone("w8a16", htp_checks.AUTOMOTIVE, tmp_path / "run")


@pytest.mark.parametrize("name", NETWORKS)
def test_backbone_runs_as_planned(name: str, tmp_path: Path) -> None:
    htp_checks.check_backbone(name, PRECISION[name], tmp_path / "run")
