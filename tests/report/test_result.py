"""``result.json`` is read back whole, and another document is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.errors import InputError


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("result")
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[1,4] x) => (float[1,4] y) { a = Relu(x)  y = Neg(a) }'
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    data = {"x": np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)}
    dovetail.fit(folder / "model.onnx", target="ort-cpu", calibration=data, output=folder / "run")
    return folder / "run" / "result.json"


def test_it_comes_back_whole(written: Path) -> None:
    result = dovetail.load_result(written)
    assert result.to_json() == written.read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": 99}, "not a result of schema version 1"),
        ({"target": 3}, "target"),
        ({"verdicts": {"numerics": {"status": "perhaps", "reason": ""}}}, "perhaps"),
    ],
)
def test_another_document_is_refused(written: Path, change: dict[str, object], said: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**json.loads(written.read_text()), **change}))
    with pytest.raises(InputError, match=said):
        dovetail.load_result(path)


def test_a_plan_without_integers_has_nothing_to_read_back(written: Path, tmp_path: Path) -> None:
    data = {"x": np.ones((2, 4), np.float32)}
    model = written.parents[1] / "model.onnx"
    result = dovetail.fit(model, target="ort-cpu", precision="fp32", calibration=data, output=tmp_path / "run")
    assert not result.failed
    assert str(result.verdicts["fidelity"].status) == "not_checked"
