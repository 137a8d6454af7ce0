"""``dovetail cache``, and what a run prints about it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.cli.main import main
from dovetail.targets.tool_cache import FOLDER_VARIABLE


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[1,4] x) => (float[1,4] y) { a = Relu(x)  y = Neg(a) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    np.savez(tmp_path / "calib.npz", x=np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    return tmp_path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


FIT = ("fit", "model.onnx", "--target", "ort-cpu", "--calib", "calib.npz", "-o")


def test_a_second_run_compiles_nothing_and_says_so(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*FIT, "a") == 0
    assert "cache:" not in capsys.readouterr().out
    assert run(*FIT, "b") == 0
    out = capsys.readouterr().out
    assert "cache: the compile result was reused, the compiler was not run" in out
    counts = [dovetail.load_result(work / name / "result.json").compilations for name in "ab"]
    assert counts == [{"compiled": 1, "from_cache": 0}, {"compiled": 0, "from_cache": 1}]
    for name in ("model.onnx", "optimized.onnx", "plan.json"):
        assert (work / "a" / name).read_bytes() == (work / "b" / name).read_bytes()


@pytest.mark.parametrize(
    ("target", "package"), [("qnn-htp:sm8550", "onnxruntime_qnn"), ("xnnpack", "executorch")], ids=["htp", "xnnpack"]
)
def test_the_outputs_of_a_target_are_kept_too(
    target: str, package: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs the package {package}")
    fit = ("fit", "model.onnx", "--target", target, "--calib", "calib.npz", "--baselines", "none", "-o")
    runs = {"a": (), "b": (), "c": ("--no-cache",)}
    if package == "executorch":  # a lowering takes 3 seconds
        del runs["c"]
    for name, extra in runs.items():
        assert run(*fit, name, *extra) == 0
        assert ("cache: the outputs of 1 of 1 runs on the target came from it" in capsys.readouterr().out) is (
            name == "b"
        )
    results = [dovetail.load_result(work / name / "result.json") for name in runs]
    assert [result.target_runs["from_cache"] for result in results] == [0, 1, 0][: len(runs)]
    assert [result.target_runs["run"] for result in results] == [1, 0, 1][: len(runs)]
    assert len({result.verdicts["numerics"].reason for result in results}) == 1
    assert results[0].metrics.sqnr_db == results[1].metrics.sqnr_db


@pytest.mark.parametrize("how", ["--no-cache", "--config"])
def test_a_run_can_go_without_the_cache(how: str, work: Path) -> None:
    (work / "run.toml").write_text("cache = false\n")
    extra = (how, "run.toml") if how == "--config" else (how,)
    for name in "ab":
        assert run(*FIT, name, *extra) == 0
        assert dovetail.load_result(work / name / "result.json").compilations == {"compiled": 1, "from_cache": 0}
    assert not (work / "cache").exists()


def test_it_is_shown_and_emptied(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache", "info") == 0
    assert "0 entries, 0 B of at most 5.0 GB" in capsys.readouterr().out
    assert run(*FIT, "a") == 0
    capsys.readouterr()
    assert run("cache", "info") == 0
    out = capsys.readouterr().out
    assert f"folder: {work / 'cache/compile'}" in out
    assert "2 entries" in out
    assert run("cache", "clear") == 0
    assert "removed 2 entries" in capsys.readouterr().out
    assert run("cache", "info") == 0
    assert "0 entries" in capsys.readouterr().out


def test_a_cache_that_cannot_be_written_is_a_note(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(work / "model.onnx"))
    assert run(*FIT, "a") == 0
    assert "results could not be stored in the cache" in " ".join(capsys.readouterr().out.split())


def test_a_limit_that_is_no_number_is_bad_input(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE_LIMIT_MB", "much")
    assert run(*FIT, "a") == 2
    assert "DOVETAIL_CACHE_LIMIT_MB=much: expected a whole number of megabytes" in capsys.readouterr().err
    assert not (work / "a").exists()
