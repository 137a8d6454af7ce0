"""The output and exit codes of ``dovetail check`` and ``dovetail explain``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail import catalog
from dovetail import rule_docs as docs
from dovetail.cli.main import main
from tests.rules.cases import write


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    shown = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, shown.out, shown.err


def _case(name: str, folder: Path) -> str:
    code, kind, *_ = name.split(".")
    return str(write(docs.case_texts(code, kind)[f"{name}.onnxtxt"], folder))


def test_error_is_exit_code_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = _run(capsys, "check", _case("Q502.bad", tmp_path), "--target", "ort-cpu")
    lines = out.splitlines()
    assert code == 1
    assert lines[0] == "Q502 nan_or_infinity_in_constant (error)"
    assert lines[1].split() == ["at:", "mask"]
    assert lines[3].startswith("  fix: ")
    assert lines[-1] == "1 finding in model.onnx for ort-cpu: 1 error"


def test_note_is_exit_code_0(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = _run(capsys, "check", _case("Q503.bad", tmp_path), "--target", "ort-cpu", "--calib", "random:2")
    assert code == 0
    assert "(note, 2 places)" in out


def test_pinned_shape_finds_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = _case("Q601.bad", tmp_path)
    assert _run(capsys, "check", model, "--target", "ort-cpu")[0] == 1
    code, out, _ = _run(capsys, "check", model, "--target", "ort-cpu", "--shape", "x=1,4")
    assert (code, out) == (0, "0 findings in model.onnx for ort-cpu\n")


def test_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = _run(capsys, "check", _case("Q501.bad", tmp_path), "--target", "ort-cpu", "--format", "json")
    document = json.loads(out)
    assert code == 1
    assert (document["model"], document["target"]) == ("model.onnx", "ort-cpu")
    (finding,) = document["findings"]
    assert (finding["code"], finding["name"], finding["severity"]) == ("Q501", "range_too_wide_to_quantize", "error")
    assert finding["numbers"]["lost_share"] == 1.0
    assert set(finding) == {"code", "name", "place", "message", "severity", "numbers", "fix"}
    assert set(finding["place"]) == {"kind", "nodes", "tensor", "op_type", "edge", "name"}
    assert (finding["place"]["kind"], finding["place"]["edge"]) == ("tensor", None)


def test_sarif(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = _case("Q502.bad", tmp_path)
    code, out, _ = _run(capsys, "check", model, "--target", "ort-cpu", "--format", "sarif")
    document = json.loads(out)
    assert (code, document["version"]) == (1, "2.1.0")
    (run,) = document["runs"]
    (rule,), (result,) = run["tool"]["driver"]["rules"], run["results"]
    assert rule["id"] == result["ruleId"] == "Q502"
    assert rule["help"]["markdown"] == docs.explain(catalog.find_rule("Q502"))
    assert (result["ruleIndex"], result["level"]) == (0, "error")
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == model
    assert location["logicalLocations"] == [{"fullyQualifiedName": "mask", "kind": "tensor"}]
    assert result["properties"]["place"]["tensor"] == "mask"


def test_github(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    model = _case("Q502.bad", tmp_path / "a,b")
    code, out, _ = _run(capsys, "check", model, "--target", "ort-cpu", "--format", "github")
    assert code == 1
    line, count = out.splitlines()
    assert line.startswith(f"::error file={model.replace(',', '%2C')},title=Q502 nan_or_infinity_in_constant::mask: ")
    assert count == "1 finding in model.onnx for ort-cpu: 1 error"


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (("check", "missing.onnx", "--target", "ort-cpu"), "missing.onnx"),
        (("check", "missing.onnx", "--target", "nowhere"), "nowhere"),
        (("check", "missing.onnx", "--target", "ort-cpu", "--shape", "x"), "--shape x"),
        (("explain", "Q999"), "Q999"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...], culprit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert culprit in err
    assert len(err.strip().splitlines()) == 1


def test_explain_prints_the_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "explain", "q501")
    assert code == 0
    assert out == docs.explain(catalog.find_rule("Q501"))


@pytest.mark.parametrize("code", ["qnn-htp", "TRT"])
def test_a_retired_code_names_the_codes_that_replaced_it(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, _, err = _run(capsys, "explain", code)
    assert exit_code == 2
    assert "is retired" in err
    assert "Q8" in err


def test_explain_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "explain")
    assert code == 0
    for rule in catalog.all_rules():
        assert f"{rule.code}  {rule.name}\n" in out


def test_a_retired_rule_says_what_to_read_instead(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalog, "RETIRED", {"Q598": "Q501 finds it now"})
    code, _, err = _run(capsys, "explain", "Q598")
    assert (code, "Q501 finds it now" in err) == (2, True)
