"""``python -m bench.check_recall``: what the real compiler changes is found by its log and graph, and compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("transformers", reason="needs the package transformers")
pytest.importorskip("PIL", reason="needs the package pillow")
pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

from bench import check_recall
from dovetail.rule_docs import case_texts
from tests.rules.cases import write

# Rule, case, and what the compiler does with the only operator that it changes.
CHANGED = {
    ("Q101", "Q101.bad.onnxtxt"): "cpu",
    ("Q103", "Q103.bad.onnxtxt"): "float",
    ("Q406", "Q406.bad.2.onnxtxt"): "float",
    ("Q104", "Q104.bad.onnxtxt"): "converted",
    ("Q109", "Q109.bad.onnxtxt"): "stored",
    ("Q110", "Q110.bad.onnxtxt"): "cpu",
    ("Q607", "Q607.bad.onnxtxt"): "cpu",
}


def row(code: str, kind: str, case: str, folder: Path) -> check_recall.Row:
    return check_recall.measured_file(code, write(case_texts(code, kind)[case], folder), folder)


@pytest.mark.parametrize(("code", "case"), CHANGED)
def test_a_changed_operator_is_found_and_predicted(code: str, case: str, tmp_path: Path) -> None:
    measured = row(code, "bad", case, tmp_path)
    assert [change.how for change in measured.changed.values()] == [CHANGED[code, case]]
    assert set(measured.changed) == set(measured.predicted) == measured.hit
    assert all(codes == (code,) for codes in measured.predicted.values())


@pytest.mark.parametrize("code", ["Q104", "Q109", "Q301", "Q602"])
def test_nothing_is_changed_in_a_graph_that_runs_as_its_pairs_say(code: str, tmp_path: Path) -> None:
    case = {"Q301": "Q301.good.5.onnxtxt", "Q602": "Q602.good.3.onnxtxt"}.get(code, f"{code}.good.onnxtxt")
    measured = row(code, "good", case, tmp_path)
    assert (measured.changed, measured.predicted) == ({}, {})
    assert (measured.recall, measured.precision) == (1, 1)


def test_everything_behind_an_unknown_shape_is_on_the_cpu(tmp_path: Path) -> None:
    measured = row("Q606", "bad", "Q606.bad.onnxtxt", tmp_path)
    on_cpu = {measured.operators[name] for name, change in measured.changed.items() if change.how == "cpu"}
    assert {"Reshape", "Neg"} <= on_cpu
    assert measured.recall == 1


def test_it_prints_a_line_per_network_and_the_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_recall.main(["beit", "--precision", "w8a16", "--detail", "2"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^beit w8a16 +\d+ +2 +2 +2 +100.0% +100.0%$", printed, re.MULTILINE)
    assert "changed and predicted: MatMul converted 2" in printed
    with pytest.raises(SystemExit):
        check_recall.main(["speed"])
    assert "unknown network 'speed'" in capsys.readouterr().err
