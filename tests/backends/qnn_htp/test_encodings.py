"""Encodings on the real HTP compiler: what the file says is what was compiled, without calibration data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.encodings.as_plan import encodings_of
from dovetail.encodings.convert import convert
from dovetail.encodings.shapes import model_tensors
from dovetail.finding import Status
from dovetail.model.read import read
from dovetail.model.write import write
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.storage import ScaleSource
from dovetail.targets import open_target
from tests.equality import model_from, normal
from tests.planning import noise, planned

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

SAMPLES = Path(__file__).parents[2] / "encodings" / "samples"
TARGET = "qnn-htp:v75"
LINEAR = """g (float[1,8,64] x) => (float[1,8,32] y)
{ a = MatMul(x, w) d = Relu(a) y = MatMul(d, v) }"""


def test_a_sample_of_aimet_compiles_with_its_own_scales(tmp_path: Path) -> None:
    file = SAMPLES / "w8a16_0.6.1.json"
    result = dovetail.fit(
        SAMPLES / "tiny.onnx", target=TARGET, encodings=file, output=tmp_path / "run", baselines="none"
    )
    assert result.precision == "w8a16"
    for verdict in ("compiled", "fidelity", "numerics"):
        assert result.verdicts[verdict].status is Status.PASS, verdict
    changed = json.loads((tmp_path / "run" / "encodings.json").read_bytes())["changed"]
    assert list(changed) == ["add_out"], "the input of a Softmax, whose scale HTP truncates (Q558)"
    assert "scale raised from 0.000299 as the target's kernel requires" in changed["add_out"]


@pytest.mark.parametrize("version", ["1.0.0", "2.0.0"])
def test_lpbq_of_a_file_compiles_with_its_integer_scales(version: str, tmp_path: Path) -> None:
    path = write(model_from(LINEAR, w=normal(64, 64), v=normal(64, 32, seed=1)), tmp_path / "linear.onnx")[0]
    model = read(path)
    infer_shapes(model)
    target = open_target(TARGET)
    plan = planned(model, target, target.table.precisions["w4a16-lpbq"], data=noise(model))
    file = tmp_path / "encodings.json"
    encodings = encodings_of(plan, model)
    file.write_bytes(convert(encodings, version, model_tensors(model)).content)
    result = dovetail.fit(path, target=TARGET, encodings=file, output=tmp_path / "run", baselines="none")
    assert result.precision == "w4a16-lpbq"
    for verdict in ("compiled", "fidelity", "numerics"):
        assert result.verdicts[verdict].status is Status.PASS, verdict
    rows = {row.original_name: row for row in result.plan if row.original_name in ("w", "v")}
    for name, row in rows.items():
        assert row.scale_from is ScaleSource.GIVEN
        integers = encodings.entries[name].int_scale
        assert integers is not None
        np.testing.assert_array_equal(row.scale.integers, integers.T[:, :, None, None])  # of a 1 x 1 kernel
