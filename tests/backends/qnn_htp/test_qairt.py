"""Which QAIRT version wrote a file and whether a device's runtime loads it: the table, and the real runtime."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import dovetail
from dovetail.backend import CompileResult
from dovetail.cli.main import cli
from dovetail.errors import InputError
from dovetail.finding import Severity
from dovetail.targets.child import run_child
from dovetail.targets.qnn_htp.install import probe, too_old, why_ignored
from dovetail.targets.qnn_htp.qairt import (
    LOADING,
    MEASURED,
    WHEELS,
    DeviceFileKind,
    LoadExpectation,
    can_load,
    made_by,
    parse_version,
)
from tests.backends.qnn_htp.real_compiler import RELU, compile_text, options, wheel_without

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CompileResult:
    """A context binary and a DLC."""
    return compile_text(RELU, tmp_path_factory.mktemp("made"), options(dlc="1"))


def artifact(compiled: CompileResult, name: str) -> Path:
    return next(a.path for a in compiled.artifacts if a.name == name)


def test_every_file_says_which_qairt_made_it(made: CompileResult) -> None:
    qairt = probe().versions["qairt"]
    builders = {a.name: a.made_by for a in made.artifacts}
    for name in ("context", "context_qnn", "dlc"):
        assert builders[name].startswith(f"QAIRT {qairt}."), name
    assert builders["qnn_graph"] == f"onnxruntime-qnn {probe().versions['onnxruntime-qnn']}"
    assert artifact(made, "dlc").name == "model.dlc"
    assert [a.path.name for a in made.artifacts if a.shipped] == ["context_qnn.bin", "model.dlc"]
    assert f"Backend build version: v{made_by(artifact(made, 'dlc'))}" in made.log


def test_no_dlc_is_written_by_default(tmp_path: Path) -> None:
    result = compile_text(RELU, tmp_path)
    assert [a.name for a in result.artifacts] == ["model", "context", "context_qnn", "qnn_graph"]
    assert not (tmp_path / "dlc").exists()


@pytest.mark.usefixtures("empty_cache")
def test_a_dlc_that_cannot_be_written_is_a_finding_and_the_context_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(wheel_without("libQnnIr.so", tmp_path))
    result = compile_text(RELU, tmp_path, options(dlc="1"))
    assert result.error == ""
    assert [a.name for a in result.artifacts] == ["model", "context", "context_qnn", "qnn_graph"]
    (finding,) = result.findings
    assert (finding.code, str(finding.place), finding.severity) == ("Q703", "DLC", Severity.ERROR)
    assert finding.message.startswith("no DLC was written: ")


@pytest.mark.parametrize(
    ("content", "build"),
    [
        (b"..v2.51.0.260929181845.rv2.51.0.260929181845..", "2.51.0.260929181845"),
        (b'"converterVersion": "2.47.0.260601114230",', "2.47.0.260601114230"),
        (b"v2.51.0.260929181845 v2.47.0.260601114230", ""),
        (b"version 2.51.0", ""),
    ],
)
def test_a_file_without_a_unique_build_number_has_no_version(content: bytes, build: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    assert made_by(tmp_path / "file") == build


def load(folder: Path) -> tuple[str, str]:
    """Run the context binary in a folder on the emulator; return the error and the log."""
    sample = folder / "sample.npz"
    np.savez(sample, **{"0": np.zeros((1, 8, 16), np.float32)})
    arguments = {"model": str(folder / "context.onnx"), "options": dict(options().provider), "sample": str(sample)}
    arguments |= {"names": ["x"], "outputs": str(folder / "outputs.npz")}
    result = run_child("dovetail.targets.qnn_htp.session:run_in_child", arguments)
    return result.error, result.log


@pytest.mark.parametrize(("change", "loads"), [((0, 0), True), ((0, 40), True), ((1, 0), False)])
def test_the_runtime_rejects_a_newer_minor_version_and_accepts_another_patch(
    change: tuple[int, int], loads: bool, made: CompileResult, tmp_path: Path
) -> None:
    """The runtime compares HTP's own version, 5.MINOR.PATCH, in the header of the binary."""
    for name in ("context", "context_qnn"):
        shutil.copy(artifact(made, name), tmp_path)
    minor = parse_version(probe().versions["qairt"])[1]
    binary = tmp_path / "context_qnn.bin"
    content = binary.read_bytes()
    before = struct.pack("<3I", 5, minor, 0)
    assert content.count(before) == 1
    binary.write_bytes(content.replace(before, struct.pack("<3I", 5, minor + change[0], change[1])))
    error, _ = load(tmp_path)
    assert (error == "") == loads, error
    if not loads:
        assert "Failed to load from EpContext model" in error


@pytest.mark.parametrize(
    ("kind", "version", "device", "expected"),
    [
        (DeviceFileKind.CONTEXT, "2.51.0.260929181845", "2.51", LoadExpectation.YES),
        (DeviceFileKind.CONTEXT, "2.50.40", "2.50.0", LoadExpectation.YES),
        (DeviceFileKind.CONTEXT, "2.47", "2.51", LoadExpectation.YES),
        (DeviceFileKind.CONTEXT, "2.51", "2.50.40", LoadExpectation.NO),
        (DeviceFileKind.CONTEXT, "2.51", "2.33", LoadExpectation.NO),
        (DeviceFileKind.CONTEXT, "2.51", "2.60", LoadExpectation.YES),
        (DeviceFileKind.CONTEXT, "2.51", "3.0", LoadExpectation.YES),
        (DeviceFileKind.DLC, "2.51", "2.47", LoadExpectation.YES),
        (DeviceFileKind.DLC, "2.51", "2.33", LoadExpectation.NOT_KNOWN),
        (DeviceFileKind.DLC, "2.51", "2.60", LoadExpectation.YES),
    ],
)
def test_whether_a_device_is_expected_to_load_a_file(
    kind: DeviceFileKind, version: str, device: str, expected: LoadExpectation
) -> None:
    expectation, source = can_load(kind, parse_version(version), parse_version(device))
    assert expectation is expected
    measured = {parse_version(version), parse_version(device)} <= set(MEASURED)
    assert ("this combination was not measured" in source) == (not measured)


def test_the_table_has_a_row_and_a_source_for_every_case() -> None:
    assert sorted((row.kind, row.older_runtime) for row in LOADING) == sorted(
        (kind, older) for kind in DeviceFileKind for older in (False, True)
    )
    assert all("measured" in row.source for row in LOADING)
    assert len(WHEELS) == len(MEASURED)


@pytest.mark.parametrize("text", ["", "2", "new", "2.x", "2.47-beta"])
def test_an_invalid_version_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match=f"--option device_qairt={text}: expected a QAIRT version"):
        parse_version(text)


def test_an_older_device_is_an_error_for_the_context_binary_and_a_note_for_the_dlc(tmp_path: Path) -> None:
    result = compile_text(RELU, tmp_path, options(dlc="1", device_qairt="2.48"))
    (finding,) = result.findings
    assert (finding.code, finding.severity) == ("Q701", Severity.ERROR)
    assert "context_qnn.bin was written by QAIRT 2.5" in finding.message
    assert "is not expected to load on QAIRT 2.48: measured" in finding.message
    assert "compile model.onnx with QAIRT 2.48 (in onnxruntime-qnn 2.4.0)" in finding.fix
    (note,) = result.notes
    assert "model.dlc was written by QAIRT 2.5" in note
    assert "is expected to load on QAIRT 2.48" in note


def test_the_command_line_has_options_for_the_dlc_and_the_device(tmp_path: Path) -> None:
    path = tmp_path / "float.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {RELU}'), path)
    command = ["fit", str(path), "--calib", "random", "--option", "dlc=1", "--option", "device_qairt=2.51", "-o"]
    done = CliRunner().invoke(cli, [*command, str(tmp_path / "run"), "--target", "qnn-htp:sm8550"])
    assert done.exit_code == 0, done.output
    result = dovetail.load_result(tmp_path / "run" / "result.json")
    assert len([note for note in result.notes if "expected to load on QAIRT 2.51" in note]) == 2
    builders = {artifact.name: artifact.made_by for artifact in result.artifacts}
    assert builders["model"] == f"dovetail {dovetail.__version__}"
    assert builders["dlc"].startswith("QAIRT 2.")
    refused = CliRunner().invoke(cli, [*command, str(tmp_path / "other"), "--target", "ort-cpu"])
    assert str(refused.exception) == "target ort-cpu has no option 'device_qairt'"


@pytest.mark.parametrize(("wheel", "ignores"), [("2.4.0", True), ("2.5.0", False), ("2.10.1", False)])
def test_an_option_that_the_wheel_does_not_have(wheel: str, ignores: bool) -> None:
    option = "enable_block_quant_weight_optimization"
    reason = why_ignored([option], wheel)
    assert bool(reason) is ignores
    if ignores:
        assert f"{wheel} silently ignores the option {option}" in reason
    assert why_ignored(["vtcm_mb"], wheel) == ""


@pytest.mark.parametrize(
    ("wheel", "runtime", "old"),
    [
        ("2.3.0", "1.31.1", True),
        ("2.3.0", "1.28.0", True),
        ("2.3.0", "1.27.0", False),
        ("2.4.0", "1.31.1", False),
        ("2.10.0", "1.31.1", False),
    ],
)
def test_a_wheel_too_old_for_the_runtime(wheel: str, runtime: str, old: bool) -> None:
    reason = too_old(wheel, runtime)
    assert bool(reason) == old
    if old:
        assert reason.startswith(f"onnxruntime-qnn {wheel} is too old for onnxruntime {runtime}")
        assert "pip install" in reason
