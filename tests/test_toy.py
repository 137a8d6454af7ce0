"""A target in one file passes every stage without a change to any of them."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.console import Console

import dovetail
from dovetail import targets
from dovetail.backend import Artifact, CompileResult, Probe
from dovetail.errors import InputError
from dovetail.op_support import FP32
from dovetail.report.terminal import print_result
from dovetail.trials.knobs.mixed import mixed
from tests import toy_target
from tests.changed import changed

BODY = """
<ir_version: 10, opset_import: ["": 17]>
g (float[1,6,4] x) => (float[1,7,2] z)
<float[1,1,4] cls = {0.5, -0.5, 1, 2}, float[4,2] w = {1,-2, 3,4, -5,6, 7,8}, float[2] b = {0.1, -0.2}>
{
    t = Transpose <perm = [0, 2, 1]> (x)
    u = Transpose <perm = [0, 2, 1]> (t)
    r = Relu(u)
    c = Concat <axis = 1> (cls, r)
    m = MatMul(c, w)
    z = Add(m, b)
}
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(targets.FAMILIES, "toy", "tests.toy_target")
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(BODY), path)
    return path


def samples() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).normal(size=(8, 6, 4)).astype(np.float32)}


def fit(model: Path, **options: object) -> dovetail.Result:
    return dovetail.fit(model, target="toy", calibration=samples(), output=model.parent / "run", **options)


def test_the_toy_passes_every_verdict(model: Path) -> None:
    result = fit(model)
    assert {str(verdict.status) for verdict in result.verdicts.values()} == {"pass"}
    rows = {row.tensor: row for row in result.plan if row.edge is None}
    assert rows["r"].scale == rows["c"].scale  # Concat passes its inputs' quantization through on this target
    assert [artifact.path for artifact in result.artifacts] == ["toy.onnx"]


def test_the_target_checks_its_own_options(model: Path) -> None:
    assert not fit(model, option={"speed": "fast"}).failed
    with pytest.raises(InputError, match="toy has no 'sped'"):
        fit(model, option={"sped": "fast"}, force=True)


def test_its_compiler_may_reject_a_graph(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tests.toy_target as toy

    rejecting = changed(toy.TOY, compile=lambda artifacts, folder: CompileResult(artifacts, error="no kernel for Relu"))
    monkeypatch.setattr(toy, "TOY", rejecting)
    result = fit(model)
    assert result.failed == ("compiled",)
    assert str(result.verdicts["fidelity"].status) == "not_checked"
    assert result.verdicts["numerics"].reason == "nothing was compiled: no kernel for Relu"
    assert result.metrics.sqnr_db.target_vs_float is None


def test_its_backend_may_be_missing(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tests.toy_target as toy
    from dovetail.cli.main import main

    missing = changed(toy.TOY, probe=lambda: Probe(False, {}, "pip install toy-compiler"))
    monkeypatch.setattr(toy, "TOY", missing)
    np.savez(model.parent / "calib.npz", **samples())
    arguments = ["fit", str(model), "--target", "toy", "--calib", str(model.parent / "calib.npz"), "-o"]
    for require, code in (((), 0), (("--require", "compiled"), 3)):
        run = model.parent / f"run{code}"
        with pytest.raises(SystemExit) as stop:
            main([*arguments, str(run), *require])
        assert stop.value.code == code
        verdicts = json.loads((run / "result.json").read_text())["verdicts"]
        assert {name: verdict["status"] for name, verdict in verdicts.items()} == {
            "normalized": "pass",
            "compiled": "not_checked",
            "fidelity": "not_checked",
            "numerics": "not_checked",
            "accuracy": "pass",
        }
    assert "pip install toy-compiler" in capsys.readouterr().out


def test_a_resumed_run_does_not_use_what_an_interrupted_choice_left(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first candidate is emitted and never compiled."""

    def stopped(artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
        raise KeyboardInterrupt

    choosing = changed(toy_target.TOY, choices={"auto": ("w8a8", "fp32")}, compile=stopped, knobs=(mixed(),))
    both = {"w8a8": toy_target.TOY.table.precisions["w8a8"], "fp32": FP32}
    monkeypatch.setattr(toy_target, "TOY", changed(choosing, precisions=both))
    with pytest.raises(KeyboardInterrupt):
        fit(model, precision="auto")
    assert list((model.parent / "run/stages/trials").glob("*/toy.onnx"))
    monkeypatch.setattr(toy_target, "TOY", changed(toy_target.TOY, compile=toy_target.compile_model))
    result = fit(model, precision="auto", resume=True)
    assert not result.failed
    assert not (model.parent / "run/stages/trials").exists()


METRIC = """
def {name}(outputs, targets):
    return {{"sum": sum({value} * float(abs(values).sum()) for sample in outputs for values in sample.values())}}
"""


@pytest.fixture
def choosing(model: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Arguments of a run that chooses between two precisions, with a metric by name and held-out data in a file."""
    both = {"w8a8": toy_target.TOY.table.precisions["w8a8"], "fp32": FP32}
    auto = changed(toy_target.TOY, choices={"auto": ("w8a8", "fp32")}, precisions=both, knobs=(mixed(),))
    monkeypatch.setattr(toy_target, "TOY", auto)
    monkeypatch.chdir(model.parent)
    (model.parent / "its_metric.py").write_text(METRIC.format(name="one", value=1) + METRIC.format(name="two", value=2))
    monkeypatch.delitem(sys.modules, "its_metric", raising=False)
    np.savez(model.parent / "calib.npz", **samples())
    held_out = {
        name: np.random.default_rng(number).normal(size=(number, 6, 4)) for number, name in ((3, "a"), (4, "b"))
    }
    for name, array in held_out.items():
        np.savez(model.parent / f"{name}.npz", x=array.astype(np.float32))
    return {
        "model": model,
        "target": "toy",
        "calibration": model.parent / "calib.npz",
        "evaluation": model.parent / "a.npz",
        "metric": "its_metric:one",
        "precision": "auto",
        "output": model.parent / "run",
    }


def drops(**arguments: object) -> list[float]:
    """By how much the caller's metric gets worse, for every plan that was tried; the metric limits the choice."""
    has_metric = arguments["metric"] is not None
    result = dovetail.fit(**arguments, **({"max_drop": 1e9} if has_metric else {}))  # type: ignore[arg-type]
    (decision,) = [decision for decision in result.decisions if decision.knob == "mixed" and decision.is_whole]
    figures = [value for row in decision.alternatives for name, value in row.figures.items() if "drop of" in name]
    assert bool(figures) is has_metric
    return figures


def test_a_resumed_run_has_the_figures_of_its_own_metric(
    choosing: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def compile_model(artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
        compiled.append(folder)
        return toy_target.compile_model(artifacts, folder)

    monkeypatch.setattr(toy_target, "TOY", changed(toy_target.TOY, compile=compile_model))
    first = drops(**choosing)
    assert any(first)
    count = len(compiled)
    assert drops(**choosing, resume=True) == first
    assert len(compiled) == count, "nothing has changed"
    other = {**choosing, "metric": "its_metric:two"}
    assert drops(**other, resume=True) == pytest.approx([2 * drop for drop in first])
    Path("its_metric.py").write_text(METRIC.format(name="two", value=33))
    monkeypatch.delitem(sys.modules, "its_metric")
    assert drops(**other, resume=True) == pytest.approx([33 * drop for drop in first])
    assert drops(**{**choosing, "evaluation": None, "metric": None}, resume=True) == []


def test_a_resumed_run_has_the_figures_of_its_own_data(choosing: dict[str, object]) -> None:
    first = drops(**choosing)
    other = {**choosing, "evaluation": Path("b.npz")}
    second = drops(**other, resume=True)
    assert second != first
    assert second == drops(**{**other, "output": Path("fresh")})
    other["metric"] = lambda outputs, targets: {"sum": -sum(float(abs(v).sum()) for o in outputs for v in o.values())}
    assert drops(**other, resume=True) == pytest.approx([-drop for drop in second])


def test_the_size_is_that_of_the_shipped_files(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def emit(*arguments: object) -> tuple[Artifact, ...]:
        artifacts = toy_target.emit(*arguments)  # type: ignore[arg-type]
        return tuple(dataclasses.replace(artifact, shipped=False) for artifact in artifacts)

    def compile_model(artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
        (folder / "program.bin").write_bytes(b"x" * 1234)
        return CompileResult((*artifacts, Artifact("program", folder / "program.bin", "toyc 1", shipped=True)))

    monkeypatch.setattr(toy_target, "TOY", changed(toy_target.TOY, emit=emit, compile=compile_model))
    expected = {"float": model.stat().st_size, "program.bin": 1234}
    for resume in (False, True):
        result = fit(model, resume=resume)
        assert result.metrics.size_bytes == expected
        assert [a.path for a in result.artifacts if a.shipped] == ["compile/program.bin"]
    printed = io.StringIO()
    print_result(result, model.parent / "run", Console(file=printed, width=120))
    assert re.search(r"size of program\.bin \(shipped\) .* 1.2 kB", printed.getvalue())


def test_nothing_ships_if_the_graph_was_rejected(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rejecting = changed(toy_target.TOY, compile=lambda artifacts, folder: CompileResult(artifacts, error="no"))
    monkeypatch.setattr(toy_target, "TOY", rejecting)
    assert fit(model).metrics.size_bytes.keys() == {"float"}
