"""To a device and back: the script runs on its own, and what it leaves becomes the verdict ``device``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.errors import InputError
from dovetail.finding import Status
from tests.device import runs


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    runs.with_device(monkeypatch)
    runs.fit(tmp_path)
    return tmp_path / "run"


def came_back(run: Path) -> Path:
    """The folder that the script leaves, from a copy of the device folder elsewhere."""
    there = shutil.copytree(run / "device", run.parent / "phone")
    done = runs.on_device(there)
    assert done.returncode == 0, done.stderr
    return there / "outputs"


def test_the_loop_fills_verdict_and_figures(run: Path) -> None:
    outputs = came_back(run)
    before = dovetail.load_result(run / "result.json")
    result = dovetail.verify_device(run, device_outputs=outputs)
    verdict = result.verdicts["device"]
    assert verdict.status is Status.PASS, verdict.reason
    assert verdict.reason.startswith("the device runs as simulated; ")
    assert "3 samples in outputs, toy.onnx on Linux" in verdict.evidence
    assert "onnxruntime 1." in verdict.evidence
    against_float, against_simulation = (
        result.metrics.sqnr_db.device_vs_float,
        result.metrics.sqnr_db.device_vs_simulation,
    )
    assert against_float is not None
    assert against_simulation is not None
    for name in ("z", "sum:0"):
        assert 25 < (against_float[name] or 0) < 60
        assert (against_simulation[name] or 0) > 30
    assert result.metrics.cosine.device_vs_float is not None
    assert result.metrics.max_abs_error.device_vs_simulation is not None
    assert dovetail.load_result(run / "result.json") == result
    assert {**result.verdicts, "device": None} == {**before.verdicts, "device": None}
    assert not list(run.glob("*.part"))


def test_quantized_outputs_are_compared_in_real_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs.with_device(monkeypatch)
    runs.fit(tmp_path, io="quantized")
    outputs = came_back(tmp_path / "run")
    assert np.load(outputs / "000/z.npy").dtype == np.uint8
    result = dovetail.verify_device(tmp_path / "run", device_outputs=outputs)
    assert result.verdicts["device"].status is Status.PASS
    figures = result.metrics.sqnr_db.device_vs_float
    assert figures is not None
    assert 25 < (figures["z"] or 0) < 60


def test_rows_behind_a_topk_are_matched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs.with_device(monkeypatch)
    runs.fit(tmp_path, body=runs.RANKED)
    run = tmp_path / "run"
    outputs = came_back(run)
    for name in ("scores", "rows"):
        path = outputs / f"001/{name}.npy"
        np.save(path, np.load(path)[:, ::-1])
    assert json.loads((run / "device/manifest.json").read_text())["ranked"] == {"scores": 1, "rows": 1}
    assert dovetail.verify_device(run, device_outputs=outputs).verdicts["device"].status is Status.PASS
    runs.change(run / "device/manifest.json", ranked={})
    (outputs / "ran.json").unlink()
    assert dovetail.verify_device(run, device_outputs=outputs).verdicts["device"].status is Status.FAIL


@pytest.mark.parametrize(
    ("value", "said"), [(3.0, "device and simulation part; 'z'"), (np.nan, "the device's output 'z' holds NaN")]
)
def test_a_device_that_computes_something_else_fails(run: Path, value: float, said: str) -> None:
    outputs = came_back(run)
    array = np.load(outputs / "002/z.npy")
    array[0, 0] = value
    np.save(outputs / "002/z.npy", array)
    result = dovetail.verify_device(run, device_outputs=outputs)
    assert result.failed == ("device",)
    assert result.verdicts["device"].reason.startswith(said)


def test_an_emulator_is_no_device(run: Path) -> None:
    outputs = came_back(run)
    runs.change(outputs / "ran.json", emulated=True)
    result = dovetail.verify_device(run, device_outputs=outputs)
    verdict = result.verdicts["device"]
    assert verdict.status is Status.NOT_CHECKED
    assert verdict.reason.startswith(
        "the outputs come from an emulator, not from a device: the device runs as simulated"
    )
    assert result.metrics.sqnr_db.device_vs_float is None
    np.save(outputs / "000/z.npy", np.zeros((1, 6, 2), np.float32))
    assert dovetail.verify_device(run, device_outputs=outputs).verdicts["device"].status is Status.FAIL


def test_float_tensors_are_asked_for_no_more_than_the_target_keeps(run: Path) -> None:
    outputs = came_back(run)
    for path in outputs.glob("*/z.npy"):
        array = np.load(path)
        np.save(path, array + np.float32(0.02) * np.abs(array).max())  # about 10 dB below simulation
    assert dovetail.verify_device(run, device_outputs=outputs).verdicts["device"].status is Status.FAIL
    runs.change(run / "device/manifest.json", float_db=20.0)
    (outputs / "ran.json").unlink()
    assert dovetail.verify_device(run, device_outputs=outputs).verdicts["device"].status is Status.PASS


def test_outputs_of_another_model_are_refused(run: Path, tmp_path: Path) -> None:
    outputs = came_back(run)
    runs.fit(tmp_path, force=True, keep=("z=w8a8",), count=2)
    with pytest.raises(InputError, match="comes from another model or other samples than those of"):
        dovetail.verify_device(run, device_outputs=shutil.copytree(outputs, tmp_path / "old", ignore=_third))


def _third(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "002"]


def test_a_device_folder_of_another_model_is_refused(run: Path) -> None:
    outputs = came_back(run)
    runs.change(run / "device/manifest.json", model_sha256="0" * 64)
    with pytest.raises(InputError, match=r"speaks of another model than result\.json"):
        dovetail.verify_device(run, device_outputs=outputs)


def test_the_script_refuses_a_model_that_is_not_the_folder_s(run: Path) -> None:
    (run / "device/toy.onnx").write_bytes(b"other")
    done = runs.on_device(run / "device")
    assert done.returncode == 2
    assert done.stderr == "toy.onnx is missing, or not the file that this folder was made with\n"
    assert not (run / "device/outputs").exists()


def test_the_script_takes_another_model_backend_and_place(run: Path) -> None:
    done = runs.on_device(run / "device", "--backend", "broken")
    assert done.returncode == 1
    assert "there is no such backend" in done.stderr
    place = run.parent / "elsewhere"
    done = runs.on_device(run / "device", "--model", run / "toy.onnx", "--outputs", place)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in place.iterdir()) == ["000", "001", "002", "ran.json"]


@pytest.mark.parametrize(
    ("content", "said"),
    [("[]", "not the record of a run"), ("{", "not the record of a run"), ("{}", "manifest_sha256")],
)
def test_a_record_that_is_none_is_refused(run: Path, content: str, said: str) -> None:
    outputs = came_back(run)
    (outputs / "ran.json").write_text(content)
    with pytest.raises(InputError, match=said):
        dovetail.verify_device(run, device_outputs=outputs)
