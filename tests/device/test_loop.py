"""The device loop: the script runs on its own, and its outputs give the verdict ``device``."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import dovetail
from dovetail.errors import InputError
from dovetail.finding import Severity, Status
from dovetail.report.terminal import print_result
from tests.device import runs


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and beside it the copy of its device folder in which the script has run."""
    folder = tmp_path_factory.mktemp("device")
    with pytest.MonkeyPatch.context() as patch:
        runs.with_device(patch)
        runs.fit(folder)
    device_outputs(folder / "run")
    return folder


@pytest.fixture
def run(fitted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    runs.with_device(monkeypatch)
    shutil.copytree(fitted, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


@pytest.fixture
def outputs(run: Path) -> Path:
    """What the script wrote."""
    return run.parent / "phone/outputs"


def device_outputs(run: Path) -> Path:
    """Run the script in a copy of the device folder, and return the folder with its outputs."""
    phone = shutil.copytree(run / "device", run.parent / "phone")
    process = runs.on_device(phone)
    assert process.returncode == 0, process.stderr
    return phone / "outputs"


def test_device_outputs_set_verdict_and_figures(run: Path, outputs: Path) -> None:
    before = dovetail.load_result(run / "result.json")
    result = dovetail.verify_device(run, device_outputs=outputs)
    verdict = result.verdicts["device"]
    assert verdict.status is Status.PASS, verdict.reason
    assert verdict.reason.startswith("device and simulation agree; ")
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


def test_device_and_simulation_are_shown_on_the_same_samples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The device folder has 8 of the 12 samples that simulation and target ran."""
    runs.with_device(monkeypatch)
    runs.fit(tmp_path, count=12)
    result = dovetail.verify_device(tmp_path / "run", device_outputs=device_outputs(tmp_path / "run"))
    sqnr_db = result.metrics.sqnr_db
    assert (result.metrics.device_samples, result.metrics.target_samples) == (8, 12)
    assert sqnr_db.simulation_where_device_ran is not None
    assert sqnr_db.simulation_where_device_ran["z"] != sqnr_db.simulation_vs_float["z"]
    console = Console(record=True, width=160)
    print_result(result, tmp_path / "run", console)
    rows = [line for line in console.export_text().splitlines() if "on the 8 samples of the device" in line]
    assert f"{sqnr_db.simulation_where_device_ran['z']:.1f} dB" in rows[0]
    assert len(rows) == 2, "one per output"


def test_quantized_outputs_are_dequantized_before_comparing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs.with_device(monkeypatch)
    runs.fit(tmp_path, io="quantized")
    outputs = device_outputs(tmp_path / "run")
    assert np.load(outputs / "000/z.npy").dtype == np.uint8
    result = dovetail.verify_device(tmp_path / "run", device_outputs=outputs)
    assert result.verdicts["device"].status is Status.PASS
    figures = result.metrics.sqnr_db.device_vs_float
    assert figures is not None
    assert 25 < (figures["z"] or 0) < 60


def test_rows_after_a_topk_are_matched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs.with_device(monkeypatch)
    runs.fit(tmp_path, body=runs.RANKED)
    run = tmp_path / "run"
    outputs = device_outputs(run)
    for name in ("scores", "rows"):
        path = outputs / f"001/{name}.npy"
        np.save(path, np.load(path)[:, ::-1])
    assert json.loads((run / "device/manifest.json").read_text())["ranked"] == {"scores": 1, "rows": 1}
    assert dovetail.verify_device(run, device_outputs=outputs).verdicts["device"].status is Status.PASS
    runs.change(run / "device/manifest.json", ranked={})
    (outputs / "ran.json").unlink()
    assert dovetail.verify_device(run, device_outputs=outputs).verdicts["device"].status is Status.FAIL


@pytest.mark.parametrize(
    ("value", "message"),
    [(3.0, "device and simulation disagree; 'z'"), (np.nan, "the device's output 'z' contains NaN")],
)
def test_a_device_with_other_outputs_fails(run: Path, outputs: Path, value: float, message: str) -> None:
    array = np.load(outputs / "002/z.npy")
    array[0, 0] = value
    np.save(outputs / "002/z.npy", array)
    result = dovetail.verify_device(run, device_outputs=outputs)
    assert result.failed == ("device",)
    assert result.verdicts["device"].reason.startswith(message)


def test_outputs_of_an_emulator_never_pass(run: Path, outputs: Path) -> None:
    runs.change(outputs / "ran.json", emulated=True)
    result = dovetail.verify_device(run, device_outputs=outputs)
    verdict = result.verdicts["device"]
    assert verdict.status is Status.NOT_CHECKED
    assert verdict.reason.startswith(
        "the outputs come from an emulator, not from a device: device and simulation agree"
    )
    assert result.metrics.sqnr_db.device_vs_float is None
    np.save(outputs / "000/z.npy", np.zeros((1, 6, 2), np.float32))
    assert dovetail.verify_device(run, device_outputs=outputs).verdicts["device"].status is Status.FAIL


def simulated(run: Path) -> Path:
    """The outputs of a device that computes exactly what was simulated."""
    return shutil.copytree(run / "device/expected/simulation", run.parent / "simulated")


def test_a_device_that_agrees_with_a_bad_simulation_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both are 25 to 60 dB from float: below a limit of 70 dB."""
    runs.with_device(monkeypatch)
    runs.fit(tmp_path, min_sqnr=70.0)
    run = tmp_path / "run"
    result = dovetail.verify_device(run, device_outputs=simulated(run))
    verdict = result.verdicts["device"]
    assert verdict.status is Status.FAIL
    assert re.match(
        r"output 'z' is at \d\d\.\d dB against float, below the limit of 70 dB; output 'sum:0'", verdict.reason
    )
    assert "device and simulation agree" in verdict.reason
    assert verdict.passes_when["accuracy"].startswith("SQNR(device) against float >= 70 dB")
    (finding,) = [f for f in result.findings if f.code == "Q505" and f.message.startswith("on the device: output 'z'")]
    assert finding.severity is Severity.ERROR
    again = dovetail.verify_device(run, device_outputs=run / "device/expected/float")
    assert again.verdicts["device"].status is Status.PASS
    assert not [f for f in again.findings if f.message.startswith("on the device:")], "that of the other outputs"


def test_an_accuracy_that_deserves_a_warning_passes(run: Path) -> None:
    """Noise of the same size in device and simulation: 15 dB from float."""
    random = np.random.default_rng(0)
    for name in ("z", "sum_0"):
        for path in (run / "device/expected/simulation").glob(f"*/{name}.npy"):
            exact = np.load(run / "device/expected/float" / path.parent.name / path.name)
            noise = random.standard_normal(exact.shape).astype(np.float32)
            np.save(path, exact + noise * np.sqrt((exact**2).mean() / (noise**2).mean()) * np.float32(10 ** (-15 / 20)))
    result = dovetail.verify_device(run, device_outputs=simulated(run))
    assert result.verdicts["device"].status is Status.PASS
    assert [f.severity for f in result.findings if f.message.startswith("on the device: output 'z' is at 15.")] == [
        Severity.WARNING
    ]


def test_the_accuracy_on_random_data_is_not_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs.with_device(monkeypatch)
    runs.fit(tmp_path, calibration="random", min_sqnr=70.0)
    result = dovetail.verify_device(tmp_path / "run", device_outputs=simulated(tmp_path / "run"))
    assert result.verdicts["device"].status is Status.PASS
    assert not [f for f in result.findings if f.message.startswith("on the device:")]


def test_no_more_is_required_than_float_tensors_can_reach_on_the_target(run: Path, outputs: Path) -> None:
    for path in outputs.glob("*/z.npy"):
        array = np.load(path)
        np.save(path, array + np.float32(0.02) * np.abs(array).max())  # about 10 dB below simulation
    assert dovetail.verify_device(run, device_outputs=outputs).verdicts["device"].status is Status.FAIL
    runs.change(run / "device/manifest.json", float_db=20.0)
    (outputs / "ran.json").unlink()
    assert dovetail.verify_device(run, device_outputs=outputs).verdicts["device"].status is Status.PASS


def test_outputs_of_another_model_are_refused(run: Path, outputs: Path, tmp_path: Path) -> None:
    runs.fit(tmp_path, force=True, keep=("z=w8a8",), count=2)
    with pytest.raises(
        InputError,
        match=r"outputs of another model or other samples: the manifest_sha256 in its ran\.json is not the hash",
    ):
        dovetail.verify_device(run, device_outputs=shutil.copytree(outputs, tmp_path / "old", ignore=_third_sample))


def _third_sample(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "002"]


def test_a_device_folder_of_another_model_is_refused(run: Path, outputs: Path) -> None:
    runs.change(run / "device/manifest.json", model_sha256="0" * 64)
    with pytest.raises(
        InputError, match=r"is for another model: its model_sha256 is 0{12}, but the model of result\.json has \w{12};"
    ):
        dovetail.verify_device(run, device_outputs=outputs)


def test_the_script_refuses_a_model_that_was_changed(run: Path) -> None:
    (run / "device/toy.onnx").write_bytes(b"other")
    process = runs.on_device(run / "device")
    assert process.returncode == 2
    assert process.stderr == "toy.onnx is missing or was changed; copy the whole device folder again\n"
    assert not (run / "device/outputs").exists()


def test_the_script_accepts_another_model_backend_and_output_folder(run: Path) -> None:
    process = runs.on_device(run / "device", "--backend", "broken")
    assert process.returncode == 1
    assert "unknown backend" in process.stderr
    outputs = run.parent / "elsewhere"
    process = runs.on_device(run / "device", "--model", run / "toy.onnx", "--outputs", outputs)
    assert process.returncode == 0, process.stderr
    assert sorted(path.name for path in outputs.iterdir()) == ["000", "001", "002", "ran.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "is not the record that run_on_device.py writes"),
        ("{", "is not the record that run_on_device.py writes"),
        ("{}", "manifest_sha256"),
    ],
)
def test_a_bad_record_is_refused(run: Path, outputs: Path, content: str, message: str) -> None:
    (outputs / "ran.json").write_text(content)
    with pytest.raises(InputError, match=message):
        dovetail.verify_device(run, device_outputs=outputs)
