"""Models as exporters write them, on the real builder: every attention is one kernel in the planned type.

Two layers with random weights; `python -m bench.tensorrt` has twelve, more models and more exporters.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.finding import Status
from dovetail.report.result import Result

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")
pytest.importorskip("transformers", reason="needs the package transformers")


def fitted(path: Path, size: int, precision: str, folder: Path) -> Result:
    data = {"x": np.random.default_rng(0).standard_normal((2, 3, size, size)).astype(np.float32)}
    return dovetail.fit(path, target="tensorrt:sm89", precision=precision, calibration=data, output=folder / "run")


def assert_fused(result: Result, blocks: int, kind: str) -> None:
    for name in ("normalized", "compiled", "fidelity"):
        assert result.verdicts[name].status is Status.PASS, result.verdicts[name].reason
    said = f"{blocks} attention blocks: as one kernel as planned {blocks} {kind}; in float16 {blocks}"
    assert said in result.notes
    assert [finding for finding in result.findings if finding.code == "TRT"] == []


def test_every_attention_is_one_kernel(tmp_path: Path) -> None:
    """SigLIP has two layers, and a third attention that pools with one query."""
    from bench.tensorrt_models import MODELS, export_model

    path = export_model("siglip", "torchscript-sdpa", tmp_path / "model.onnx")
    assert_fused(fitted(path, MODELS["siglip"][1], "w8a8", tmp_path), 3, "Int8 -> Int8")


def test_the_attention_operator_is_taken_apart(tmp_path: Path) -> None:
    """Opset 23 has one operator for it, which the builder does not compute in 8 bit."""
    from tests.exporters.export import ATTENTION_OP, vit

    path = tmp_path / "model.onnx"
    path.write_bytes(vit("huggingface", ATTENTION_OP))
    assert b"Attention" in path.read_bytes()
    assert_fused(fitted(path, 224, "fp8", tmp_path), 2, "FP8 -> FP8")
