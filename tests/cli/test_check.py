"""``dovetail check``: the text groups findings by rule; a dynamic model gets one finding with a line to copy."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from dovetail.cli.main import main

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
ROWS = 5
TENSORS = [f"t{number}" for number in range(ROWS)]


def _write(text: str, path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
    return path


def _many(path: Path) -> Path:
    """Five constants with an infinity, and one that is quantized to zero."""
    constants = ", ".join(f"float[2] c{number} = {{inf, 1}}" for number in range(ROWS))
    names = ["x", *TENSORS]
    body = " ".join(f"{after} = Add({names[number]}, c{number})" for number, after in enumerate(TENSORS))
    return _write(f"g (float[1,2] x) => (float[1,2] {TENSORS[-1]}) <{constants}> {{ {body} }}", path)


def _check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as done:
        main(["check", *arguments, "--target", "ort-cpu"])
    return int(done.value.code or 0), capsys.readouterr().out


def test_findings_of_one_rule_are_one_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = _check(capsys, str(_many(tmp_path / "m.onnx")))
    assert code == 1
    assert text.count("Q502") == 1
    assert "(error, 5 places)\n  at:  c0\n" in text
    assert "  also at: c1\n  also at: c2\n  and at 2 more\n" in text
    assert "2 places are not shown: add --all to see every finding" in text
    assert text.splitlines()[-1] == "5 findings in m.onnx for ort-cpu: 5 errors"


def test_all_shows_every_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = _check(capsys, str(_many(tmp_path / "m.onnx")), "--all")
    assert [line for line in text.splitlines() if line.startswith("  at:")] == [f"  at:  c{n}" for n in range(ROWS)]
    assert "not shown" not in text


def test_other_formats_have_every_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = _check(capsys, str(_many(tmp_path / "m.onnx")), "--format", "json")
    assert len(json.loads(text)["findings"]) == ROWS


def test_dynamic_model_has_one_finding_with_a_line_to_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """g (float[batch,3,h,w] x) => (float[batch,3,h,w] y) <float[1] c = {inf}> { e = Erf(x) y = Add(e, c) }"""
    path = _write(text, tmp_path / "m.onnx")
    for target in ("ort-cpu", "qnn-htp:sm8550", "tensorrt:sm89", "xnnpack"):
        with pytest.raises(SystemExit) as done:
            main(["check", str(path), "--target", target])
        printed = capsys.readouterr().out
        assert done.value.code == 1
        assert printed.startswith("Q601")
        assert "  fix: pin it, for example with --shape x=1,3,224,224\n" in printed
        assert printed.splitlines()[-1] == f"1 finding in m.onnx for {target}: 1 error"
    code, printed = _check(capsys, str(path), "--shape", "x=1,3,224,224")
    assert code == 1
    assert "Q502" in printed
    assert "Q601" not in printed


def _config(folder: Path, text: str) -> str:
    (folder / "dovetail.toml").write_text(text)
    return str(folder / "dovetail.toml")


def test_allowed_findings_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(_many(tmp_path / "m.onnx"))
    code, text = _check(capsys, model, "--config", _config(tmp_path, "[allow]\nQ502 = ['c[0-3]', 'nothing*']\n"))
    assert code == 1
    assert text.splitlines()[-1] == "1 finding in m.onnx for ort-cpu: 1 error (4 more allowed)"
    assert "allow: Q502 = 'nothing*' allows nothing" in text
    code, text = _check(capsys, model, "--config", _config(tmp_path, "[allow]\nq502 = ['c*']\n"))
    assert code == 0
    assert text == "0 findings in m.onnx for ort-cpu (5 more allowed)\n"


def test_allowed_findings_are_suppressed_results_of_sarif(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = _config(tmp_path, "[allow]\nQ502 = ['c0']\n")
    _, text = _check(capsys, str(_many(tmp_path / "m.onnx")), "--config", config, "--format", "sarif")
    results = json.loads(text)["runs"][0]["results"]
    assert len(results) == ROWS
    assert [result.get("suppressions", [{}])[0].get("kind") for result in results] == [None] * 4 + ["external"]
    _, text = _check(capsys, str(_many(tmp_path / "m.onnx")), "--config", config, "--format", "json")
    assert [row["place"]["tensor"] for row in json.loads(text)["allowed"]] == ["c0"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("allow = 1", "allow must be a table"),
        ("[allow]\nQ502 = 'c0'", "allow.Q502 must be a list of patterns"),
        ("[allow]\nQ502 = [1]", "allow.Q502 must be a list of patterns"),
        ("[allow]\nQ999 = ['*']", "unknown rule 'Q999'"),
        ("[alow]\nQ502 = ['*']", "unknown option 'alow'"),
    ],
)
def test_a_bad_allow_list(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["check", str(_many(tmp_path / "m.onnx")), "--target", "ort-cpu", "--config", _config(tmp_path, text)])
    assert done.value.code == 2
    assert message in capsys.readouterr().err


def test_the_target_of_a_configuration_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, config = str(_many(tmp_path / "m.onnx")), _config(tmp_path, "target = 'ort-cpu'")
    with pytest.raises(SystemExit) as done:
        main(["check", model, "--config", config])
    assert done.value.code == 1
    with pytest.raises(SystemExit) as done:
        main(["check", model])
    assert done.value.code == 2
    assert "no target: add --target" in capsys.readouterr().err
