"""The table of ``bench.repair``: cells are kept, refusals are sentences, and a worse model is exit code 1."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from bench.repair_cases import VARIABLE

from bench import repair


def test_cells_are_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--models", "vit_fashion", "--targets", "ort-cpu", "--folder", str(tmp_path), "--quantizers"]
    assert repair.main([*arguments, "static-default"]) == 0
    first = capsys.readouterr().out
    assert first.startswith("vit_fashion | static-default | ort-cpu | ")
    assert "failed" not in first
    assert repair.main([*arguments, "static-default"]) == 0
    assert capsys.readouterr().out.startswith("| network | quantizer | ort-cpu |")


def test_a_quantizer_that_is_not_installed_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, sys.executable)
    options = ["--models", "vit_fashion", "--quantizers", "modelopt-fp8", "--targets", "ort-cpu"]
    assert repair.main([*options, "--folder", str(tmp_path)]) == 0
    assert "nvidia-modelopt failed: ModuleNotFoundError: No module named 'modelopt'" in capsys.readouterr().out


def test_a_worse_model_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "model": "m",
        "quantizer": "q",
        "target": "t",
        "as_given_db": 30.0,
        "failed": ["numerics"],
        "change_db": [-1, 0.5],
    }
    for repaired_db, code in ((29.1, 0), (28.9, 1)):
        (tmp_path / "cells.jsonl").write_text(json.dumps({**row, "repaired_db": repaired_db}) + "\n")
        assert repair.main(["--table", "--folder", str(tmp_path)]) == code
        assert f"| m | q | 30.0 -> {repaired_db} (per sample -1.0 ± 0.5); numerics failed |" in capsys.readouterr().out


def test_a_worse_target_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compared with the model as given on the samples that the target ran."""
    row = {"model": "m", "quantizer": "q", "target": "t", "as_given_db": 30.0, "repaired_db": 31.0}
    for target_db, given_there_db, code in ((28.5, 29.4, 0), (28.5, 29.6, 1), (28.5, 30.0, 1)):
        cell = {**row, "target_db": target_db, "given_there_db": given_there_db}
        (tmp_path / "cells.jsonl").write_text(json.dumps(cell) + "\n")
        assert repair.main(["--table", "--folder", str(tmp_path)]) == code
        there = "" if given_there_db == 30.0 else f", as given there {given_there_db}"
        assert f"30.0 -> 31.0 (target {target_db}{there})" in capsys.readouterr().out
    (tmp_path / "cells.jsonl").write_text(json.dumps({**row, "failed": ["repaired"]}) + "\n")
    assert repair.main(["--table", "--folder", str(tmp_path)]) == 1


def test_an_unknown_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        repair.main(["--quantizers", "other", "--folder", str(tmp_path)])
    assert "unknown quantizer 'other'; expected one of static-default" in capsys.readouterr().err
