"""Image encoders on the real HTP compiler, each at one precision; in all of them: python -m bench.zoo encoders."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("onnxscript", reason="needs the package onnxscript")
pytest.importorskip("transformers", reason="needs the package transformers")
pytest.importorskip("PIL", reason="needs the package pillow")

from tests.networks import htp_checks
from tests.networks.encoders import NETWORKS

PRECISION = {"clip": "w8a16", "siglip": "w8a8", "mobilevit": "w8a8", "sam": "w8a16"}


@pytest.mark.parametrize("name", NETWORKS)
def test_encoder_runs_as_planned(name: str, tmp_path: Path) -> None:
    htp_checks.check_encoder(name, PRECISION[name], tmp_path / "run")


def test_text_recogniser_runs_as_planned(tmp_path: Path) -> None:
    """In 8 bit; in 16 bit it is read in test_ocr.py, and here by python -m bench.zoo recogniser."""
    htp_checks.check_recogniser("w8a8", tmp_path / "run")
