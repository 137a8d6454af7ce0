"""With QAIRT_SDK_ROOT, the script is run and what the converter wrote is read back.

The SDK is on no package registry: stand-ins write what the real HTP compiler made of the same plan.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dovetail
from dovetail.finding import Status
from dovetail.report.result import Result
from tests.backends.qairt.converter_files import as_converted, dumped
from tests.backends.qairt.encodings_files import MODEL

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed: pip install 'dovetail-fit[qnn]'")
TARGET = "qairt:2.33/v75"
TOOLS = {
    "qnn-onnx-converter": 'cp "$NET" model_net.json; echo "$@" > converter.txt',
    "qnn-model-lib-generator": "true",
    "qnn-context-binary-generator": "mkdir -p context; echo binary > context/model.bin",
}


def stand_in(folder: Path, version: str = "2.33.0.250327", **tools: str) -> Path:
    """An SDK whose tools are shell scripts."""
    root = folder / version
    place = root / "bin" / "x86_64-linux-clang"
    place.mkdir(parents=True)
    for name, body in {**TOOLS, **tools}.items():
        (place / name).write_text(f"#!/bin/sh\nset -eu\n{body}\n")
        (place / name).chmod(0o755)
    return root


def fit(run: Path, **option: str) -> Result:
    return dovetail.fit(
        MODEL, target=TARGET, calibration="random:2", precision="w8a16", output=run, option=option, force=True
    )


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the converter is to write: the graph of the real compiler, with the converter's names."""
    for name in ("QAIRT_SDK_ROOT", "QNN_SDK_ROOT"):
        monkeypatch.delenv(name, raising=False)
    fit(tmp_path / "first")
    path = tmp_path / "net.json"
    path.write_text(json.dumps(as_converted(dumped(tmp_path / "first" / "model.onnx", tmp_path / "compiled"))))
    monkeypatch.setenv("NET", str(path))
    return path


def test_the_commands_are_run_and_read_back(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(stand_in(tmp_path)))
    result = fit(tmp_path / "run")
    assert result.verdicts["compiled"].status is Status.PASS
    assert result.verdicts["fidelity"].status is Status.PASS, result.verdicts["fidelity"].reason
    assert result.versions["qairt"] == "2.33.0.250327"
    assert "context" in {artifact.name for artifact in result.artifacts if artifact.shipped}
    called = (tmp_path / "run" / "qairt" / "fallback" / "converter.txt").read_text()
    assert "--float_fallback" in called
    document = json.loads(net.read_bytes())
    document["graph"]["tensors"]["relu_out"]["data_type"] = 0x408
    net.write_text(json.dumps(document))
    assert "planned uint16, found uint8" in fit(tmp_path / "run").verdicts["fidelity"].reason


def test_the_chosen_way_is_run(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_SDK_ROOT", stand_in(tmp_path).name)  # both are relative to where fit is called
    monkeypatch.setenv("INPUT_LIST", "list.txt")
    monkeypatch.chdir(tmp_path)
    result = fit(tmp_path / "run", strategy="explicit")
    assert result.verdicts["compiled"].status is Status.PASS
    assert (
        f"--input_list {tmp_path / 'list.txt'}"
        in (tmp_path / "run" / "qairt" / "explicit" / "converter.txt").read_text()
    )
    verdict = fit(tmp_path / "run", strategy="qdq").verdicts["compiled"]
    assert (verdict.status, "has no converter" in verdict.reason) == (Status.NOT_CHECKED, True)


def test_a_failure_of_the_converter_is_its_own_message(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = stand_in(tmp_path, **{"qnn-onnx-converter": "echo \"KeyError: 'param_encodings'\" >&2; exit 1"})
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(root))
    verdict = fit(tmp_path / "run").verdicts["compiled"]
    assert verdict.status is Status.FAIL
    assert "KeyError: 'param_encodings'" in verdict.reason


def test_a_context_binary_that_is_missing_is_a_failure(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = stand_in(tmp_path, **{"qnn-context-binary-generator": r"printf 'done \377\n'"})  # not UTF-8
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(root))
    verdict = fit(tmp_path / "run").verdicts["compiled"]
    assert verdict.status is Status.FAIL
    assert "wrote no context/model.bin" in verdict.reason


def test_a_kept_graph_is_not_converted_without_its_file(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(stand_in(tmp_path)))
    verdict = fit(tmp_path / "run", keep_graph="1").verdicts["compiled"]
    assert verdict.status is Status.NOT_CHECKED
    assert "run qairt/fallback/convert.sh MODEL.onnx" in verdict.reason


def test_another_sdk_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(stand_in(tmp_path, "2.41.0.251128")))
    verdict = fit(tmp_path / "run").verdicts["compiled"]
    assert verdict.status is Status.NOT_CHECKED
    assert "is QAIRT 2.41.0.251128, not 2.33" in verdict.reason
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(tmp_path))
    assert "this is not the QAIRT SDK" in fit(tmp_path / "run").verdicts["compiled"].reason
