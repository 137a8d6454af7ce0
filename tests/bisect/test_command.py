"""The command: bad input is one sentence, and nothing of the caller's is overwritten."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from dovetail.bisect.report import REPRODUCE, ReportCase, report_text
from dovetail.bisect.run import bisect, require_free
from dovetail.bisect.search import FailingPart
from dovetail.config import options_from
from dovetail.errors import InputError
from dovetail.sweep.outcome import Failure, FailureKind
from tests.planning import graph

MODEL = '<ir_version: 10, opset_import: ["": 21]> g (float[1,8] x) => (float[1,8] y) { y = Relu(x) }'


def _model(folder: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), folder / "m.onnx")
    return folder / "m.onnx"


def test_a_model_that_does_not_fail(tmp_path: Path) -> None:
    found = bisect(_model(tmp_path), options_from({"target": "ort-cpu"}), tmp_path / "found")
    assert found is None
    assert not (tmp_path / "found").exists()


def test_an_unknown_predicate(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown predicate 'slow'; expected one of refused, wrong, changed"):
        bisect(_model(tmp_path), options_from({"target": "ort-cpu"}), tmp_path / "found", predicate="slow")


def test_only_an_earlier_result_is_replaced(tmp_path: Path) -> None:
    require_free(tmp_path / "new", force=False)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match="has files that no bisection wrote"):
        require_free(tmp_path, force=True)
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    (earlier / "report.md").touch()
    with pytest.raises(InputError, match="add --force to replace it"):
        require_free(earlier, force=False)
    require_free(earlier, force=True)
    assert not earlier.exists()
    with pytest.raises(InputError, match="is not a folder"):
        require_free(tmp_path / "thesis.tex", force=True)


def _case(log: str) -> ReportCase:
    versions = {"compiler": "1.2"}
    return ReportCase("m.onnx", "0" * 64, "toy", "w8a8", {}, "", versions, "dovetail bisect m.onnx", log, script=False)


def test_names_cannot_break_the_report() -> None:
    failure = Failure(FailureKind.REFUSED, "node 'a|b`c\nd' is refused")
    nodes = (("Relu", "a|b\n# title"),)
    model = graph("g (float[1] x) => (float[1] y) { y = Relu(x) }")
    part = FailingPart(model, {}, nodes, failure, failure, 3, is_minimal=True)
    text = report_text(part, _case("2026-01-01 10:00:00.1 error: ``` no\n" * 2), ())
    assert len([line for line in text.splitlines() if line.startswith("| Relu | a\\|b")]) == 1
    assert [line for line in text.splitlines() if line.startswith("# ")] == ["# Relu: refused by the compiler of toy"]
    assert text.count("```") == 2
    assert text.count("error: ''' no") == 1
    assert "`dovetail bisect m.onnx` shows it." in text


def test_the_script_is_python() -> None:
    compile(REPRODUCE.format(inputs=["it's"], outputs=["y"], model="model.onnx"), "reproduce.py", "exec")
