"""The device folder of ``qnn-htp``, run by the emulator in a process of its own, and given back."""

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
from dovetail.targets.qnn_htp.device import device_side, session_text
from tests.device import runs

onnxruntime_qnn = pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shipped = zoo.load("vit_digits")
    place = tmp_path_factory.mktemp("htp") / "run"
    calibration = {name: array[:4] for name, array in shipped.calib().items()}
    dovetail.fit(shipped.model_path, target="qnn-htp:sm8550", precision="w8a16", calibration=calibration, output=place)
    return place


@pytest.fixture
def phone(run: Path, tmp_path: Path) -> Path:
    """The device folder, copied to where nothing else of the run is."""
    return shutil.copytree(run / "device", tmp_path / "phone")


def test_what_the_folder_holds(run: Path) -> None:
    names = {path.name for path in (run / "device").iterdir()}
    files = {"context.onnx", "context_qnn.bin", "model.onnx", "device_session.py", "run_on_device.py"}
    assert names == files | {"input_list.txt", "manifest.json", "expected", *(f"input_{n:03d}" for n in range(4))}
    lines = (run / "device/input_list.txt").read_text().splitlines()
    assert lines == [f"images:=input_{number:03d}/images.raw" for number in range(4)]
    assert "dovetail" not in (run / "device/device_session.py").read_text()


def test_the_context_binary_runs_and_its_outputs_are_compared(run: Path, phone: Path) -> None:
    done = runs.on_device(phone)
    assert done.returncode == 0, done.stderr
    record = json.loads((phone / "outputs/ran.json").read_text())
    assert record["model"] == "context.onnx"
    assert record["emulated"] is True
    verdict = dovetail.verify_device(run, device_outputs=phone / "outputs").verdicts["device"]
    assert verdict.status is Status.NOT_CHECKED  # no device took part
    assert "the outputs come from an emulator" in verdict.reason
    runs.change(phone / "outputs/ran.json", emulated=False)  # as the script writes it where there is an HTP
    result = dovetail.verify_device(run, device_outputs=phone / "outputs")
    assert result.verdicts["device"].status is Status.PASS, result.verdicts["device"].reason
    agreement = result.metrics.sqnr_db.device_vs_simulation
    assert agreement is not None
    assert 45 < (agreement["logits"] or 0) < 200


def test_the_graph_can_be_compiled_there_with_a_backend_that_is_named(run: Path, phone: Path) -> None:
    # What the option says wins over the variable, which names none.
    environment = {**os.environ, "QNN_BACKEND_PATH": str(phone / "libNone.so")}
    arguments = ("--model", phone / "model.onnx", "--backend", onnxruntime_qnn.get_qnn_htp_path())
    done = runs.on_device(phone, *arguments, environment=environment)
    assert done.returncode == 0, done.stderr
    verdict = dovetail.verify_device(run, device_outputs=phone / "outputs").verdicts["device"]
    assert "model.onnx on " in verdict.evidence
    assert verdict.status is Status.NOT_CHECKED
    assert "the device runs as simulated" in verdict.reason


def test_a_backend_that_is_not_there_is_an_error_never_the_cpu(phone: Path) -> None:
    environment = {**os.environ, "QNN_BACKEND_PATH": str(phone / "libNone.so")}
    done = runs.on_device(phone, environment=environment)
    assert done.returncode != 0
    assert not (phone / "outputs/ran.json").exists()


def test_what_qnn_net_run_leaves_is_read(run: Path, phone: Path, tmp_path: Path) -> None:
    assert runs.on_device(phone).returncode == 0
    for number in range(4):
        folder = tmp_path / f"output/Result_{number}"
        folder.mkdir(parents=True)
        np.load(phone / f"outputs/{number:03d}/logits.npy").astype("<f4").tofile(folder / "logits.raw")
    result = dovetail.verify_device(run, device_outputs=tmp_path / "output")
    assert result.verdicts["device"].status is Status.PASS
    assert "without a record" in result.verdicts["device"].evidence


def test_without_a_compiler_the_graph_is_what_runs(tmp_path: Path) -> None:
    given = [Artifact("model_data", tmp_path / "model.onnx.data"), Artifact("model", tmp_path / "model.onnx")]
    case = DeviceCase((), (), ({"a": "input_000/a.raw", "b": "input_000/b.raw"},))
    side = device_side({}, CompileResult(tuple(given)), case)
    assert [path.name for path in side.models] == ["model.onnx", "model.onnx.data"]
    assert side.texts["input_list.txt"] == "a:=input_000/a.raw b:=input_000/b.raw\n"


def test_the_session_has_the_options_of_the_run() -> None:
    space: dict[str, object] = {"__name__": "device_session"}
    exec(session_text({"soc_model": "43", "vtcm_mb": "8"}), space)
    assert space["PROVIDER_OPTIONS"] == {"soc_model": "43", "vtcm_mb": "8"}
    assert space["SESSION_OPTIONS"] == device_session.SESSION_OPTIONS
    assert session.SESSION_OPTIONS is device_session.SESSION_OPTIONS  # what was checked
