"""With QAIRT_SDK_ROOT, the script is run and what the converter wrote is read back.

The SDK is on no package registry: stand-ins write what the real HTP compiler made of the same plan.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dovetail
from dovetail.device.verify_converted import verify_converted
from dovetail.finding import Status
from dovetail.report.result import Result
from tests.backends.qairt.converter_files import as_converted, dumped
from tests.backends.qairt.encodings_files import MODEL
from tests.networks.mixed_detector import write_decoder

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


def fit(run: Path, target: str = TARGET, **option: str) -> Result:
    return dovetail.fit(
        MODEL, target=target, calibration="random:2", precision="w8a16", output=run, option=option, force=True
    )


def net_for(model: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stand-in for the converter write the graph that the real compiler makes of an emitted model."""
    path.write_text(json.dumps(as_converted(dumped(model, path.parent / "compiled"))))
    monkeypatch.setenv("NET", str(path))


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the converter is to write: the graph of the real compiler, with the converter's names."""
    for name in ("QAIRT_SDK_ROOT", "QNN_SDK_ROOT"):
        monkeypatch.delenv(name, raising=False)
    fit(tmp_path / "first")
    path = tmp_path / "net.json"
    net_for(tmp_path / "first" / "model.onnx", path, monkeypatch)
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


def test_the_callers_own_file_is_converted_if_the_graph_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QAIRT_SDK_ROOT", raising=False)
    assert fit(tmp_path / "first", keep_graph="1").verdicts["compiled"].status is Status.NOT_CHECKED
    net_for(tmp_path / "first" / "model.onnx", tmp_path / "net.json", monkeypatch)
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(stand_in(tmp_path)))
    result = fit(tmp_path / "run", keep_graph="1")
    assert result.verdicts["compiled"].status is Status.PASS, result.verdicts["compiled"].reason
    assert result.verdicts["fidelity"].status is Status.PASS, result.verdicts["fidelity"].reason
    called = (tmp_path / "run" / "qairt" / "fallback" / "converter.txt").read_text()
    assert f"--input_network {MODEL.resolve()}" in called


def test_a_dlc_is_read_back_as_json(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 2.37 on the converter writes a DLC; qairt-dlc-to-json -i DLC -o JSON has the shape of *_net.json."""
    tools = {"qairt-converter": "true", "qairt-quantizer": 'echo "$@" > quantizer.txt'}
    root = stand_in(
        tmp_path, "2.41.0.251128", **tools, **{"qairt-dlc-to-json": 'test "$1 $3" = "-i -o"; cp "$NET" "$4"'}
    )
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(root))
    result = fit(tmp_path / "run", target="qairt:2.41/v75")
    assert result.verdicts["fidelity"].status is Status.PASS, result.verdicts["fidelity"].reason
    assert (tmp_path / "run" / "qairt" / "fallback" / "model_net.json").is_file()
    (root / "bin" / "x86_64-linux-clang" / "qairt-dlc-to-json").unlink()
    verdict = fit(tmp_path / "run", target="qairt:2.41/v75").verdicts["fidelity"]
    assert (verdict.status, "wrote no *_net.json" in verdict.reason) == (Status.NOT_CHECKED, True)


def test_the_parts_are_read_back_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QAIRT_SDK_ROOT", raising=False)
    model, data = write_decoder(tmp_path)
    keep = ["padded/*=fp16"]

    def fit_split(run: Path) -> Result:
        return dovetail.fit(
            model, target=TARGET, calibration=data, precision="w8a16", keep=keep, output=run,
            option={"strategy": "split"}, force=True,
        )  # fmt: skip

    fit_split(tmp_path / "first")
    parts = sorted((tmp_path / "first" / "qairt" / "split").glob("simulation_*.onnx"))
    assert len(parts) == 2
    for number, part in enumerate(parts):
        document = as_converted(dumped(part, tmp_path / f"compiled_{number}"))
        (tmp_path / f"part_{number}_net.json").write_text(json.dumps(document))
    monkeypatch.setenv("NETS", str(tmp_path))
    tools = {
        "qnn-onnx-converter": 'cp "$NETS/$(basename "$2" .onnx)_net.json" .',
        "qnn-context-binary-generator": "mkdir -p context; touch context/part_0.bin context/part_1.bin",
    }
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(stand_in(tmp_path, **tools)))
    result = fit_split(tmp_path / "run")
    assert result.verdicts["compiled"].status is Status.PASS, result.verdicts["compiled"].reason
    assert result.verdicts["fidelity"].status is Status.PASS, result.verdicts["fidelity"].reason
    graphs = sorted((tmp_path / "run" / "qairt" / "split").glob("*_net.json"))
    document = json.loads(graphs[0].read_bytes())
    document["graph"]["tensors"]["value"]["data_type"] = 0x408
    graphs[0].write_text(json.dumps(document))
    verified = verify_converted(tmp_path / "run", graphs)
    assert "'value': planned uint16, found uint8" in verified.verdicts["fidelity"].reason


def test_another_sdk_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(stand_in(tmp_path, "2.41.0.251128")))
    verdict = fit(tmp_path / "run").verdicts["compiled"]
    assert verdict.status is Status.NOT_CHECKED
    assert "is QAIRT 2.41.0.251128, not 2.33" in verdict.reason
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(tmp_path))
    assert "this is not the QAIRT SDK" in fit(tmp_path / "run").verdicts["compiled"].reason
