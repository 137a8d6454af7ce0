"""``dovetail verify``: the table, the exit codes, and one clear sentence for every bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Run
from tests.device import runs


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and, in place of those of a device, the outputs of the float graph."""
    folder = tmp_path_factory.mktemp("verify")
    with pytest.MonkeyPatch.context() as patch:
        runs.with_device(patch)
        runs.fit(folder)
    shutil.copytree(folder / "run/device/expected/float", folder / "back")
    return folder


@pytest.fixture
def work(fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which is the working directory."""
    runs.with_device(monkeypatch)
    shutil.copytree(fitted, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


VERIFY = ("verify", "run", "--device-outputs", "back")


def verdict(work: Path) -> str:
    return str(json.loads((work / "run/result.json").read_text())["verdicts"]["device"]["status"])


def test_a_device_that_agrees_with_the_simulation(run: Run, work: Path) -> None:
    assert verdict(work) == "not_checked"
    code, out, err = run(*VERIFY, "--require", "device")
    assert (code, err) == (0, "")
    assert verdict(work) == "pass"
    for text in ("device", "device and simulation agree", "200.0 dB", "run directory: run"):
        assert text in " ".join(out.split())


def test_a_device_that_disagrees_is_exit_code_1(run: Run, work: Path) -> None:
    np.save(work / "back/001/z.npy", np.ones((1, 6, 2), np.float32))
    code, out, err = run(*VERIFY)
    assert (code, err) == (1, "")
    assert "device and simulation disagree" in " ".join(out.split())
    assert verdict(work) == "fail"


def test_outputs_of_an_emulator_are_exit_code_3_if_a_device_is_required(run: Run, work: Path) -> None:
    shutil.rmtree(work / "back")
    assert runs.on_device(work / "run/device", "--outputs", work / "back").returncode == 0
    runs.change(work / "back/ran.json", emulated=True)
    assert run(*VERIFY)[0] == 0
    assert run(*VERIFY, "--require", "device")[0] == 3
    assert verdict(work) == "not_checked"


def test_a_result_of_an_earlier_version_has_not_checked_the_accuracy(run: Run, work: Path) -> None:
    path = work / "run/result.json"
    result = json.loads(path.read_text())
    del result["verdicts"]["accuracy"]
    path.write_text(json.dumps(result))
    assert run(*VERIFY, "--require", "accuracy")[0] == 3


def test_fit_requires_a_device_with_exit_code_3(run: Run, work: Path) -> None:
    np.savez(work / "calib.npz", **runs.samples())
    arguments = ("fit", "model.onnx", "--target", "toy", "--calib", "calib.npz", "-o", "other")
    assert run(*arguments, "--require", "device")[0] == 3
    assert run(*arguments, "--force")[0] == 0


def no_run(work: Path) -> None:
    shutil.rmtree(work / "run")


def no_device_folder(work: Path) -> None:
    shutil.rmtree(work / "run/device")


def another_schema(work: Path) -> None:
    runs.change(work / "run/result.json", schema_version=99)


def another_manifest(work: Path) -> None:
    runs.change(work / "run/device/manifest.json", schema_version=99)


def another_model(work: Path) -> None:
    (work / "back/ran.json").write_text(json.dumps({"manifest_sha256": "0" * 64}))


def no_outputs(work: Path) -> None:
    shutil.rmtree(work / "back")


def no_sample(work: Path) -> None:
    shutil.rmtree(work / "back/002")


def no_output(work: Path) -> None:
    (work / "back/002/sum_0.npy").unlink()


def unknown_output(work: Path) -> None:
    (work / "back/002/other.raw").write_bytes(bytes(4))


def short_file(work: Path) -> None:
    (work / "back/002/z.npy").unlink()
    (work / "back/002/z.raw").write_bytes(bytes(44))


def no_expected_output(work: Path) -> None:
    shutil.rmtree(work / "run/device/expected/simulation/001")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_run, "run/result.json cannot be read as a result"),
        (no_device_folder, "run has no device/manifest.json"),
        (another_schema, "run/result.json is not a result of schema version 4"),
        (another_manifest, "run/device/manifest.json is not a device manifest of schema version 1"),
        (
            another_model,
            "back has the outputs of another model or other samples: the manifest_sha256 in its ran.json is not",
        ),
        (no_outputs, "the folder with the device outputs, back, cannot be read"),
        (no_sample, "back has no sample 2"),
        (no_output, "back/002 has no output 'sum:0'"),
        (
            unknown_output,
            "back/002/other.raw has the output 'other', which the model does not have; expected one of z, sum:0",
        ),
        (short_file, "back/002/z.raw has 44 bytes; output 'z' is float32 [1, 6, 2], which requires 48"),
        (no_expected_output, "run/device/expected/simulation has no sample 1"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_bad_input_is_one_sentence_and_the_result_stays(
    run: Run, work: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(work)
    path = work / "run/result.json"
    before = path.read_bytes() if path.exists() else b""
    code, _, err = run(*VERIFY)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert (path.read_bytes() if path.exists() else b"") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "run"), "the folder with the device outputs, run/device/outputs, cannot be read"),
        ((*VERIFY, "--require", "magic"), "--require magic: unknown verdict; expected one of normalized"),
    ],
)
def test_bad_arguments(run: Run, work: Path, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
