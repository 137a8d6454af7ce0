"""The plan of a run with block-quantized weights can be passed back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.encoding import DType, Granularity
from dovetail.finding import Status
from dovetail.model.write import write
from tests.block_mixtures import BLOCK, EXPANDED, MIXTURES, three_layers, weights_of
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


@pytest.mark.parametrize(("precision", "kept", "expected"), MIXTURES)
def test_a_kept_layer_has_its_own_weights_and_its_plan_can_be_passed_back(
    precision: str, kept: str, expected: list[tuple[DType, Granularity]], tmp_path: Path
) -> None:
    path, data = three_layers(tmp_path)
    settings = {"target": "ort-cpu", "calibration": data}
    first = dovetail.fit(path, precision=precision, keep=[f"two={kept}"], output=tmp_path / "first", **settings)
    assert weights_of(first) == expected
    assert first.verdicts["fidelity"].status is Status.PASS
    dovetail.fit(path, plan=tmp_path / "first/plan.json", output=tmp_path / "again", **settings)
    emitted = [(tmp_path / run / "model.onnx").read_bytes() for run in ("first", "again")]
    assert emitted[0] == emitted[1]


def test_blocks_with_float_and_with_integer_scales_are_mixed(tmp_path: Path) -> None:
    path, data = three_layers(tmp_path)
    result = dovetail.fit(
        path,
        target="ort-cpu",
        precision="w4a16-lpbq",
        keep=["two=w4a16-bq"],
        block_size=16,
        calibration=data,
        output=tmp_path / "run",
    )
    assert weights_of(result) == [EXPANDED, BLOCK, EXPANDED]
