"""The promises of a run: refused when the graph is no longer the model, resumable, the caller's things unchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail import pipeline, zoo
from dovetail.errors import InputError


@pytest.fixture
def digits(tmp_path: Path) -> dict[str, object]:
    shipped = zoo.load("vit_digits")
    calibration = {name: array[:8] for name, array in shipped.calib().items()}
    return {"model": shipped.model_path, "target": "ort-cpu", "calibration": calibration, "output": tmp_path / "run"}


def test_a_graph_that_is_no_longer_the_model_is_refused(digits: dict[str, object]) -> None:
    result = dovetail.fit(**digits, thresholds={"normalized_db": 199.0})
    assert result.failed == ("normalized",)
    assert result.artifacts == ()
    assert not (Path(str(digits["output"])) / "model.onnx").exists()


def test_an_interrupted_run_is_resumed(digits: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = dovetail.fit(**{**digits, "output": Path(str(digits["output"])).with_name("whole")})

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    run = Path(str(digits["output"]))
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "make_plan", interrupt)
        with pytest.raises(KeyboardInterrupt):
            dovetail.fit(**digits)
    assert not (run / "result.json").exists()
    with pytest.raises(InputError, match="--resume"):
        dovetail.fit(**digits)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "normalize", interrupt)  # it must not be called again
        resumed = dovetail.fit(**digits, resume=True)
    assert [a.sha256 for a in resumed.artifacts if a.name == "model"] == [
        a.sha256 for a in whole.artifacts if a.name == "model"
    ]


def test_weights_beside_the_model(digits: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "outside" / "model.onnx"
    path.parent.mkdir()
    onnx.save(
        onnx.load(str(digits["model"])), path, save_as_external_data=True, location="weights.bin", size_threshold=1024
    )
    inside = dovetail.fit(**digits)
    outside = dovetail.fit(**{**digits, "model": path, "output": tmp_path / "other"})
    assert outside.metrics.size_bytes["float"] > 500_000
    assert [a.sha256 for a in outside.artifacts if a.name == "model"] == [
        a.sha256 for a in inside.artifacts if a.name == "model"
    ]


def test_a_model_in_memory_and_a_function_for_data(digits: dict[str, object]) -> None:
    model = onnx.load(str(digits["model"]))
    before = model.SerializeToString()
    arrays = digits["calibration"]

    def batches():  # type: ignore[no-untyped-def]
        for image in arrays["images"]:  # type: ignore[index]
            yield {"images": image[None]}

    result = dovetail.fit(**{**digits, "model": model, "calibration": batches})
    assert not result.failed
    assert model.SerializeToString() == before


def test_half_precision_models_are_refused_by_name(digits: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "half.onnx"
    text = '<ir_version: 10, opset_import: ["": 21]> g (float16[1,3] x) => (float16[1,3] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(InputError, match="'y' is float16: give the float32 model"):
        dovetail.fit(**{**digits, "model": path, "calibration": {"x": np.zeros((4, 3), np.float16)}})
    assert not Path(str(digits["output"])).exists()


def test_a_model_that_only_moves_data(digits: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "move.onnx"
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[2,3] x) => (float[3,2] y) { y = Transpose(x) }'
    onnx.save(onnx.parser.parse_model(text), path)
    data = {"x": np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)}
    assert not dovetail.fit(**{**digits, "model": path, "calibration": data}).failed


def test_shapes_that_depend_on_data_are_refused_by_name(digits: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "open.onnx"
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[4] x) => (float[n] y) { i = NonZero(x) j = Squeeze(i) s = Gather(x, j) y = Relu(s) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(InputError, match="has no static shape"):
        dovetail.fit(**{**digits, "model": path, "calibration": {"x": np.ones((4, 4), np.float32)}})


def test_weights_too_large_for_a_protobuf_go_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.model import write

    monkeypatch.setattr(write, "_INLINE_LIMIT_BYTES", 100_000)
    shipped = zoo.load("vit_digits")
    calibration = {name: array[:4] for name, array in shipped.calib().items()}
    result = dovetail.fit(shipped.model_path, target="ort-cpu", calibration=calibration, output=tmp_path / "run")
    assert {str(verdict.status) for verdict in result.verdicts.values()} == {"pass"}
    assert [a.path for a in result.artifacts][:2] == ["model.onnx", "model.onnx.data"]
