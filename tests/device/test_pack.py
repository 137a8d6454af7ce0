"""``RUN/device`` holds what a device needs, in the dtypes of the shipped graph; other targets have no such folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import dovetail
from dovetail import zoo
from dovetail.backend import CompileResult, DeviceKit, Probe
from dovetail.device.manifest import file_names, read_manifest
from dovetail.errors import InputError
from dovetail.targets.ort_cpu import target as ort_cpu
from tests.changed import changed
from tests.device import runs

REPROS = Path(__file__).parents[1] / "repros"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    runs.with_device(monkeypatch)
    return monkeypatch


def test_manifest_inputs_and_model(toy: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = runs.fit(tmp_path, count=12)
    device, samples = tmp_path / "run/device", runs.samples(12)
    manifest = read_manifest(device / "manifest.json")
    assert manifest.samples == 8 == len(list(device.glob("input_*")))
    assert [(t.name, t.file, t.shape, t.dtype, t.scale) for t in manifest.inputs] == [
        ("x", "x", (1, 6, 4), "float32", None),
        ("in/y.2", "in_y_2", (1, 6, 4), "float32", None),
    ]
    for number in range(8):
        raw = np.fromfile(device / f"input_{number:03d}/in_y_2.raw", "<f4")
        np.testing.assert_array_equal(raw, samples["in/y.2"][number].reshape(-1))
    assert manifest.model_sha256 == next(a.sha256 for a in result.artifacts if a.name == "model")
    assert manifest.models == {"toy.onnx": manifest.model_sha256}
    assert manifest.versions["toy"] == "1"
    assert (manifest.target, manifest.run, manifest.data.samples) == ("toy", "toy.onnx", 8)
    assert (device / "toy.onnx").read_bytes() == (tmp_path / "run/toy.onnx").read_bytes()
    assert (device / "inputs.txt").read_text().splitlines()[7] == "input_007/x.raw input_007/in_y_2.raw"


def test_expected_outputs_are_those_of_simulation_and_float(toy: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs.fit(tmp_path)
    device, samples = tmp_path / "run/device", runs.samples()
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for number in range(3):
        in_float = session.run(["z"], {name: array[number : number + 1] for name, array in samples.items()})[0]
        expected = np.load(device / f"expected/float/{number:03d}/z.npy")
        np.testing.assert_allclose(expected, in_float, rtol=1e-5, atol=1e-5)
        simulated = np.load(device / f"expected/simulation/{number:03d}/z.npy")
        assert 0 < np.abs(simulated - in_float).max() < 0.5
    assert (device / "expected/simulation/000/sum_0.npy").exists()


def test_quantized_inputs_are_written_as_integers(toy: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs.fit(tmp_path, io="quantized")
    device, samples = tmp_path / "run/device", runs.samples()
    first = read_manifest(device / "manifest.json").inputs[0]
    assert first.dtype == "uint8"
    assert first.scale is not None
    assert first.zero_point is not None
    raw = np.fromfile(device / "input_001/x.raw", np.uint8)
    dequantized = (raw.astype(np.float32) - first.zero_point) * first.scale
    np.testing.assert_allclose(dequantized, samples["x"][1].reshape(-1), atol=first.scale)
    assert np.load(device / "expected/simulation/000/z.npy").dtype == np.uint8
    assert np.load(device / "expected/float/000/z.npy").dtype == np.float32


def test_the_verdict_says_how_to_run_on_a_device(toy: pytest.MonkeyPatch, tmp_path: Path) -> None:
    verdict = runs.fit(tmp_path).verdicts["device"]
    assert str(verdict.status) == "not_checked"
    assert "not run on a device yet: run `python run_on_device.py` in device/" in verdict.reason
    assert "then `dovetail verify run --device-outputs DIR`" in verdict.reason
    assert "- 3 dB" in verdict.passes_when["float outputs"]


def test_the_same_run_writes_the_same_bytes_and_keeps_device_outputs(toy: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs.fit(tmp_path, count=4)
    device = tmp_path / "run/device"
    before = (device / "manifest.json").read_bytes()
    (device / "outputs").mkdir()
    (device / "outputs/note.txt").write_text("from the device")
    runs.fit(tmp_path, count=4, resume=True)
    assert (device / "manifest.json").read_bytes() == before
    runs.fit(tmp_path, count=4, resume=True, evaluation={name: -array for name, array in runs.samples(2).items()})
    assert sorted(path.name for path in device.glob("input_*")) == ["input_000", "input_001"]
    assert sorted(path.name for path in (device / "expected/float").iterdir()) == ["000", "001"]
    assert (device / "outputs/note.txt").exists()


def test_a_rejected_graph_has_no_device_folder(toy: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs.with_device(toy, compile=lambda artifacts, folder: CompileResult(artifacts, error="no kernel for Relu"))
    result = runs.fit(tmp_path)
    assert result.verdicts["device"].reason == "nothing was compiled: no kernel for Relu"
    assert not (tmp_path / "run/device").exists()


def test_without_a_compiler_the_device_folder_has_the_graph(toy: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs.with_device(toy, probe=lambda: Probe(False, {}, "pip install toy-compiler"))
    result = runs.fit(tmp_path)
    assert str(result.verdicts["compiled"].status) == "not_checked"
    assert (tmp_path / "run/device/manifest.json").exists()


def test_a_target_without_a_device_has_no_verdict(toy: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs.with_device(toy, device=None)
    assert "device" not in runs.fit(tmp_path).verdicts
    assert not (tmp_path / "run/device").exists()
    with pytest.raises(InputError, match="--require device: toy has no device verdict"):
        runs.fit(tmp_path, require=("device",), force=True)


def test_a_run_that_stops_is_not_checked_on_a_device_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ort_cpu, "ORT_CPU", changed(ort_cpu.ORT_CPU, device=DeviceKit(runs.device_files)))
    shipped = zoo.load("vit_digits")
    result = dovetail.fit(
        shipped.model_path,
        target="ort-cpu",
        calibration={name: array[:2] for name, array in shipped.calib().items()},
        output=tmp_path / "run",
        thresholds={"normalized_db": 199.0},
    )
    assert result.failed == ("normalized",)
    assert str(result.verdicts["device"].status) == "not_checked"
    assert not (tmp_path / "run/device").exists()


@pytest.mark.parametrize("length", [120, 121, 3000])
def test_long_names_have_short_file_names_of_their_own(length: int) -> None:
    names = ["x" * length, "x" * (length - 1) + "y", "x" * (length - 1) + "/", "x" * (length - 1) + "_"]
    files = file_names(names)
    assert len({file.lower() for file in files.values()}) == 4
    assert all(len(file) <= 125 for file in files.values())
    assert (files[names[0]] == names[0]) == (length == 120)
    assert file_names(names) == files


def test_the_device_folder_of_a_model_with_long_names(toy: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = dovetail.fit(REPROS / "out_long.onnx", target="toy", calibration="random:2", output=tmp_path / "run")
    assert "not run on a device yet" in result.verdicts["device"].reason
    device = tmp_path / "run/device"
    manifest = read_manifest(device / "manifest.json")
    assert [len(tensor.name) for tensor in (*manifest.inputs, *manifest.outputs)] == [3000, 3000]
    assert {path.stem for path in device.glob("input_*/*")} == {tensor.file for tensor in manifest.inputs}
    assert runs.on_device(device).returncode == 0
    verified = dovetail.verify_device(tmp_path / "run", device_outputs=device / "outputs")
    assert str(verified.verdicts["device"].status) == "pass"
    for number in range(2):  # as a vendor's tool writes them, by the whole name
        (expected,) = (device / f"expected/float/{number:03d}").iterdir()
        (tmp_path / "exported").mkdir(exist_ok=True)
        np.savez(tmp_path / f"exported/{number:03d}.npz", **{manifest.outputs[0].name: np.load(expected)})
    verified = dovetail.verify_device(tmp_path / "run", device_outputs=tmp_path / "exported")
    assert str(verified.verdicts["device"].status) == "pass"


@pytest.mark.parametrize("suffix", [".raw", "_native.raw"])
def test_outputs_that_a_tool_wrote_by_the_whole_name(toy: pytest.MonkeyPatch, tmp_path: Path, suffix: str) -> None:
    """A name of 150 characters is shortened by us, but not by every tool."""
    name = "z" * 150
    body = runs.BODY.replace("[1,6,2] z", f"[1,6,2] {name}").replace("z = Add", f"{name} = Add")
    runs.fit(tmp_path, count=2, body=body)
    device = tmp_path / "run/device"
    manifest = read_manifest(device / "manifest.json")
    for number in range(2):
        folder = tmp_path / f"outputs/Result_{number}"
        folder.mkdir(parents=True)
        for tensor in manifest.outputs:
            array = np.load(device / f"expected/float/{number:03d}/{tensor.file}.npy")
            array.tofile(folder / f"{name if tensor.name == name else tensor.file}{suffix}")
    verdict = dovetail.verify_device(tmp_path / "run", device_outputs=tmp_path / "outputs").verdicts["device"]
    assert str(verdict.status) == "pass", verdict.reason


def test_different_names_have_different_file_names() -> None:
    assert file_names(["a/b", "a.b", "A_b", "", "ü"]) == {
        "a/b": "a_b",
        "a.b": "a_b_2",
        "A_b": "A_b_3",
        "": "_",
        "ü": "__2",
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"schema_version": 9}, "not a device manifest of schema version 1"), ({"samples": "x"}, "samples")],
)
def test_a_bad_manifest_is_refused(
    toy: pytest.MonkeyPatch, tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    runs.fit(tmp_path)
    path = tmp_path / "run/device/manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(InputError, match=message):
        read_manifest(path)
