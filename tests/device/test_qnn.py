"""The device folder of ``qnn-htp``, run by the emulator in another process, and verified."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail import zoo
from dovetail.backend import Artifact, CompileResult, DeviceCase
from dovetail.finding import Status
from dovetail.targets.qnn_htp import device_session, session
from dovetail.targets.qnn_htp.device import device_files, session_text
from tests.device import runs

onnxruntime_qnn = pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shipped = zoo.load("vit_digits")
    output = tmp_path_factory.mktemp("htp") / "run"
    calibration = {name: array[:4] for name, array in shipped.calib().items()}
    dovetail.fit(shipped.model_path, target="qnn-htp:sm8550", precision="w8a16", calibration=calibration, output=output)
    return output


@pytest.fixture
def phone(run: Path, tmp_path: Path) -> Path:
    """A copy of the device folder, without the rest of the run."""
    return shutil.copytree(run / "device", tmp_path / "phone")


def test_the_content_of_the_folder(run: Path) -> None:
    names = {path.name for path in (run / "device").iterdir()}
    files = {"context.onnx", "context_qnn.bin", "model.onnx", "device_session.py", "run_on_device.py"}
    assert names == files | {"input_list.txt", "manifest.json", "expected", *(f"input_{n:03d}" for n in range(4))}
    lines = (run / "device/input_list.txt").read_text().splitlines()
    assert lines == [f"images:=input_{number:03d}/images.raw" for number in range(4)]
    assert "dovetail" not in (run / "device/device_session.py").read_text()


def test_the_context_binary_runs_and_its_outputs_are_compared(run: Path, phone: Path) -> None:
    process = runs.on_device(phone)
    assert process.returncode == 0, process.stderr
    record = json.loads((phone / "outputs/ran.json").read_text())
    assert record["model"] == "context.onnx"
    assert record["emulated"] is True
    verdict = dovetail.verify_device(run, device_outputs=phone / "outputs").verdicts["device"]
    assert verdict.status is Status.NOT_CHECKED  # it did not run on a device
    assert "the outputs come from an emulator" in verdict.reason
    runs.change(phone / "outputs/ran.json", emulated=False)  # as the script writes it on a device with HTP
    result = dovetail.verify_device(run, device_outputs=phone / "outputs")
    assert result.verdicts["device"].status is Status.PASS, result.verdicts["device"].reason
    agreement = result.metrics.sqnr_db.device_vs_simulation
    assert agreement is not None
    assert 45 < (agreement["logits"] or 0) < 200


def test_the_graph_can_be_compiled_on_the_device_with_a_named_backend(run: Path, phone: Path) -> None:
    # The option takes precedence over the variable, which names a missing file.
    environment = {**os.environ, "QNN_BACKEND_PATH": str(phone / "libNone.so")}
    arguments = ("--model", phone / "model.onnx", "--backend", onnxruntime_qnn.get_qnn_htp_path())
    process = runs.on_device(phone, *arguments, environment=environment)
    assert process.returncode == 0, process.stderr
    verdict = dovetail.verify_device(run, device_outputs=phone / "outputs").verdicts["device"]
    assert "model.onnx on " in verdict.evidence
    assert verdict.status is Status.NOT_CHECKED
    assert "device and simulation agree" in verdict.reason


def test_a_missing_backend_is_an_error_and_never_falls_back_to_the_cpu(phone: Path) -> None:
    environment = {**os.environ, "QNN_BACKEND_PATH": str(phone / "libNone.so")}
    process = runs.on_device(phone, environment=environment)
    assert process.returncode != 0
    assert not (phone / "outputs/ran.json").exists()


def test_outputs_of_qnn_net_run_are_read(run: Path, phone: Path, tmp_path: Path) -> None:
    assert runs.on_device(phone).returncode == 0
    for number in range(4):
        folder = tmp_path / f"output/Result_{number}"
        folder.mkdir(parents=True)
        np.load(phone / f"outputs/{number:03d}/logits.npy").astype("<f4").tofile(folder / "logits.raw")
    result = dovetail.verify_device(run, device_outputs=tmp_path / "output")
    assert result.verdicts["device"].status is Status.PASS
    assert "no ran.json: model, device and tool versions unknown" in result.verdicts["device"].evidence


def test_without_a_compiler_the_device_runs_the_graph(tmp_path: Path) -> None:
    artifacts = (Artifact("model_data", tmp_path / "model.onnx.data"), Artifact("model", tmp_path / "model.onnx"))
    case = DeviceCase((), (), ({"a": "input_000/a.raw", "b": "input_000/b.raw"},))
    files = device_files({}, CompileResult(artifacts), case)
    assert [path.name for path in files.models] == ["model.onnx", "model.onnx.data"]
    assert files.texts["input_list.txt"] == "a:=input_000/a.raw b:=input_000/b.raw\n"


def test_the_session_has_the_options_of_the_run() -> None:
    namespace: dict[str, object] = {"__name__": "device_session"}
    exec(session_text({"soc_model": "43", "vtcm_mb": "8"}), namespace)
    assert namespace["PROVIDER_OPTIONS"] == {"soc_model": "43", "vtcm_mb": "8"}
    assert namespace["SESSION_OPTIONS"] == device_session.SESSION_OPTIONS
    assert session.SESSION_OPTIONS is device_session.SESSION_OPTIONS  # the options that were verified


def test_names_that_are_too_long_for_files(tmp_path: Path) -> None:
    repro = Path(__file__).parents[1] / "repros/out_long.onnx"
    dovetail.fit(repro, target="qnn-htp:sm8550", calibration="random:2", output=tmp_path / "run")
    assert runs.on_device(tmp_path / "run/device").returncode == 0
    verdict = dovetail.verify_device(tmp_path / "run", device_outputs=tmp_path / "run/device/outputs").verdicts[
        "device"
    ]
    assert "device and simulation agree" in verdict.reason
