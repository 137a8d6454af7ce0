"""The command: bad input is one sentence, and nothing of the caller's is overwritten."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from dovetail.bisect.report import REPRODUCE, ReportCase, report_text
from dovetail.bisect.run import MARK, Bisection, NoFailure, bisect, require_free
from dovetail.bisect.search import FailingPart, Judges
from dovetail.config import options_from
from dovetail.errors import BackendError, InputError
from dovetail.sweep.outcome import Failure, FailureKind, Outcome
from tests.planning import graph

MODEL = '<ir_version: 10, opset_import: ["": 21]> g (float[1,8] x) => (float[1,8] y) { y = Relu(x) }'


def _model(folder: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), folder / "m.onnx")
    return folder / "m.onnx"


def _bisect(path: Path, output: Path, target: str = "ort-cpu", **options: str) -> Bisection | NoFailure:
    predicate = options.pop("predicate", None)
    return bisect(path, options_from({"target": target, **options}), output, predicate=predicate)


def test_a_model_that_does_not_fail(tmp_path: Path) -> None:
    found = _bisect(_model(tmp_path), tmp_path / "found")
    assert isinstance(found, NoFailure)
    assert found.checked == "it compiles as planned, and no output for the first sample is far below its simulation"
    assert not (tmp_path / "found").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"predicate": "slow"}, "unknown predicate 'slow'; expected one of refused, wrong, changed"),
        ({"precision": "fp8"}, "--precision fp8: expected one precision of ort-cpu: w8a8"),
        ({"precision": "auto"}, "--precision auto: expected one precision of ort-cpu: w8a8"),
    ],
)
def test_bad_options(options: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        _bisect(_model(tmp_path), tmp_path / "found", **options)


def test_outputs_are_not_judged_where_nothing_runs(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx")
    with pytest.raises(InputError, match="--predicate wrong: tensorrt:sm89 cannot run a model on this machine"):
        _bisect(_model(tmp_path), tmp_path / "found", "tensorrt:sm89", predicate="wrong")


IF = """y = If(c) <then_branch = t () => (float[1,8] a) { a = Relu(x) },
    else_branch = e () => (float[1,8] b) { b = Neg(x) }>"""


@pytest.mark.parametrize(
    ("nodes", "message"),
    [("q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)", "has no operators"), (IF, "is control flow")],
)
def test_models_without_parts(nodes: str, message: str, tmp_path: Path) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[1,8] x, bool c) => (float[1,8] y)
        <float s = {{0.1}}, uint8 z = {{0}}> {{ {nodes} }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(InputError, match=message):
        _bisect(tmp_path / "m.onnx", tmp_path / "found")


def test_a_failure_that_hides_the_answer_is_not_a_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    crash = Outcome((Failure(FailureKind.UNEXPECTED, "IndexError: tuple index out of range"),))
    monkeypatch.setattr(Judges, "__call__", lambda *_: crash)
    with pytest.raises(BackendError, match="could not be judged, because it is unexpected: IndexError"):
        _bisect(_model(tmp_path), tmp_path / "found")


def test_only_files_of_an_earlier_result_are_replaced(tmp_path: Path) -> None:
    model = _model(tmp_path)
    require_free(tmp_path / "new", model, force=False)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "report.md").touch()
    with pytest.raises(InputError, match="has files that no bisection wrote"):
        require_free(mine, model, force=True)
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    for name in ("report.md", "part.onnx"):
        (earlier / name).touch()
    (earlier / MARK).write_text('{"files": ["report.md", "part.onnx"]}')
    with pytest.raises(InputError, match="add --force to replace it"):
        require_free(earlier, model, force=False)
    require_free(earlier, model, force=True)
    with pytest.raises(InputError, match=r"part\.onnx is in .*, which would be replaced"):
        require_free(earlier, earlier / "part.onnx", force=True)
    (earlier / "thesis.tex").touch()
    with pytest.raises(InputError, match="has files that no bisection wrote"):
        require_free(earlier, model, force=True)
    with pytest.raises(InputError, match="is not a folder"):
        require_free(model, model, force=True)


def _case(log: str) -> ReportCase:
    versions = {"compiler": "1.2"}
    return ReportCase(
        "m.onnx", "0" * 64, "toy", "w8a8", {}, "", versions, "dovetail bisect part.onnx", log, files=("part.onnx",)
    )


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
    assert "`dovetail bisect part.onnx` in this folder shows it." in text
    assert "| part.onnx |" in text
    assert "model.onnx" not in text


def test_the_script_is_python() -> None:
    compile(REPRODUCE.format(inputs=["it's"], outputs=["y"], model="model.onnx"), "reproduce.py", "exec")
