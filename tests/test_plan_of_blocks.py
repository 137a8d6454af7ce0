"""The plan of a run with block-quantized weights can be passed back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.model.write import write
from tests.equality import model_from, normal


@pytest.mark.parametrize("precision", ["w4a16-lpbq", "w4a16-bq"])
def test_the_same_file_is_emitted(precision: str, tmp_path: Path) -> None:
    text = "g (float[8,64] x) => (float[8,32] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) }"
    path = write(model_from(text, w=normal(64, 64), v=normal(64, 32, seed=1)), tmp_path / "model.onnx")[0]
    data = {"x": np.random.default_rng(0).standard_normal((4, 8, 64)).astype(np.float32)}
    settings = {"target": "ort-cpu", "calibration": data}
    dovetail.fit(path, precision=precision, block_size=16, output=tmp_path / "first", **settings)
    again = dovetail.fit(path, plan=tmp_path / "first/plan.json", output=tmp_path / "again", **settings)
    assert again.precision == precision
    emitted = [(tmp_path / run / "model.onnx").read_bytes() for run in ("first", "again")]
    assert emitted[0] == emitted[1]
