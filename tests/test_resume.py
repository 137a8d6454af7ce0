"""A resumed run is the run that was started: what may change makes only the stages again that read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dovetail
from dovetail import shipping, zoo
from dovetail.config import FitOptions
from dovetail.errors import InputError

BODY = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,4] x) => (float[1,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}> { h = Relu(x)  y = MatMul(h, w) }"""
ROWS = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
STAMPS = ("normalize", "rewrite", "calibrate", "build")


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, Any]:
    onnx.save(onnx.parser.parse_model(BODY), tmp_path / "model.onnx")
    onnx.save(onnx.parser.parse_model(BODY.replace("{1,2,", "{9,2,")), tmp_path / "other.onnx")
    np.savez(tmp_path / "calib.npz", x=ROWS)
    np.savez(tmp_path / "other.npz", x=2 * ROWS)
    np.savez(tmp_path / "eval.npz", x=0.9 * ROWS)
    model, calibration, output = (tmp_path / name for name in ("model.onnx", "calib.npz", "run"))
    return {"model": model, "target": "ort-cpu", "calibration": calibration, "output": output}


def times(run: Path) -> dict[str, int]:
    """When each stage was made."""
    return {name: (run / f"stages/{name}.key").stat().st_mtime_ns for name in STAMPS}


def record(arguments: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads((Path(arguments["output"]) / "run.json").read_text()))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model": "other.onnx"}, "model (was SHA-256 "),
        ({"calibration": "other.npz"}, "calibration data (was SHA-256 "),
        ({"calibration": "random"}, "calibration data (was SHA-256 "),
        ({"calibration": {"x": ROWS}}, "calibration data (was SHA-256 "),
        ({"calibration": lambda: iter([{"x": ROWS[:1]}])}, "calibration data (was SHA-256 "),
        ({"target": "xnnpack"}, "--target (was ort-cpu, now xnnpack)"),
        ({"precision": "w8a16"}, "--precision (was w8a8, now w8a16)"),
        ({"range": "mse"}, "--range (was minmax, now mse)"),
        ({"rounding": "second-order"}, "--rounding (was auto, now second-order)"),
        ({"io": "quantized"}, "--io (was float, now quantized)"),
        ({"keep": ("h=fp32",)}, "--keep (was not set, now h=fp32)"),
        ({"keep": ("h=fp32",), "range": "mse"}, "--range (was minmax, now mse), --keep (was not set, now h=fp32)"),
        ({"shape": {"x": (1, 4)}}, "--shape (was not set, now x=1,4)"),
        ({"operand_bits": "8"}, "--operand-bits (was auto, now 8)"),
        ({"plan": "plan.json"}, "plan (was not set, now SHA-256 "),
    ],
)
def test_something_else_than_the_run_was_started_with_is_refused(
    arguments: dict[str, Any], changed: dict[str, Any], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dovetail.fit(**arguments)
    (tmp_path / "plan.json").write_bytes((tmp_path / "run/plan.json").read_bytes())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError) as refused:
        dovetail.fit(**{**arguments, **changed}, resume=True)
    assert f"cannot be resumed, because the run was started with another {named}" in str(refused.value)
    assert "use --force instead of --resume" in str(refused.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def one(outputs: Any, targets: Any) -> dict[str, float]:
    return {"one": float(len(list(zip(outputs, targets, strict=True))))}


@pytest.mark.parametrize(
    ("changed", "made_again"),
    [
        ({}, ()),
        ({"baselines": "none"}, ()),
        ({"cache": False}, ()),
        ({"require": ("numerics",)}, ()),
        ({"thresholds": {"numerics_drop_db": 4.0}}, ("build",)),
        ({"evaluation": "eval.npz"}, ("build",)),
        ({"evaluation": "eval.npz", "metric": "tests.test_resume:one"}, ("build",)),
    ],
)
def test_what_does_not_plan_may_change_and_only_what_reads_it_runs_again(
    arguments: dict[str, Any],
    changed: dict[str, Any],
    made_again: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = {key: tmp_path / value if key == "evaluation" else value for key, value in changed.items()}
    dovetail.fit(**arguments)
    before = times(tmp_path / "run")
    result = dovetail.fit(**{**arguments, **changed}, resume=True)
    after = times(tmp_path / "run")
    assert tuple(name for name in STAMPS if after[name] != before[name]) == made_again
    assert not result.failed
    assert record(arguments)["options"] == result.options


def test_limits_may_change_and_only_the_build_runs_again(arguments: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("executorch", reason="needs the package executorch")
    arguments = {**arguments, "target": "xnnpack", "baselines": "none"}
    dovetail.fit(**arguments, option={"time_limit_s": "500"})
    before = times(tmp_path / "run")
    dovetail.fit(**arguments, option={"time_limit_s": "400", "memory_limit_mb": "9000"}, resume=True)
    after = times(tmp_path / "run")
    assert [name for name in STAMPS if after[name] != before[name]] == ["build"]


def test_data_is_known_by_its_content(arguments: dict[str, Any], tmp_path: Path) -> None:
    """A file that was moved or touched is the same data, and arrays are known by their values."""
    dovetail.fit(**arguments)
    before = times(tmp_path / "run")
    moved = (tmp_path / "calib.npz").rename(tmp_path / "moved.npz")
    moved.touch()
    dovetail.fit(**{**arguments, "calibration": moved}, resume=True)
    assert times(tmp_path / "run") == before
    in_memory = {**arguments, "calibration": {"x": ROWS}, "output": tmp_path / "arrays"}
    dovetail.fit(**in_memory)
    before = times(tmp_path / "arrays")
    dovetail.fit(**{**in_memory, "calibration": {"x": ROWS.copy()}}, resume=True)
    assert times(tmp_path / "arrays") == before


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda run: None, "does not exist, so there is no run to resume; remove --resume"),
        (lambda run: run.mkdir(), "is empty, so there is no run to resume; remove --resume"),
        (lambda run: run.write_text("mine"), "is a file"),
    ],
)
def test_resuming_requires_a_run(arguments: dict[str, Any], prepare: Callable[[Path], Any], message: str) -> None:
    run = Path(arguments["output"])
    prepare(run)
    before = sorted(run.parent.rglob("*"))
    with pytest.raises(InputError, match=message):
        dovetail.fit(**arguments, resume=True)
    assert sorted(run.parent.rglob("*")) == before


@pytest.mark.parametrize("text", ["", "{}", '{"model": "model.onnx", "options": "FitOptions(...)"}', "[1]"])
def test_a_run_of_unknown_origin_is_not_resumed(arguments: dict[str, Any], text: str) -> None:
    dovetail.fit(**arguments)
    (Path(arguments["output"]) / "run.json").write_text(text)
    with pytest.raises(InputError, match="does not say how the run was started, so it cannot be resumed; use --force"):
        dovetail.fit(**arguments, resume=True)
    assert not dovetail.fit(**arguments, force=True).failed


def test_force_and_resume_exclude_each_other(arguments: dict[str, Any]) -> None:
    for _ in range(2):  # without and with an earlier run
        with pytest.raises(InputError, match="use only one of them"):
            dovetail.fit(**arguments, force=True, resume=True)
        dovetail.fit(**arguments, force=True)


def test_a_stage_that_is_made_again_deletes_its_outputs_first(
    arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **options: object) -> None:
        raise KeyboardInterrupt

    run = tmp_path / "run"
    dovetail.fit(**arguments)
    (run / "mine.txt").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr(shipping, "run_trials", interrupt)
        with pytest.raises(KeyboardInterrupt):
            dovetail.fit(**arguments, thresholds={"numerics_drop_db": 4.0}, resume=True)
    left = {path.name for path in run.rglob("*") if path.is_file()}
    assert left.isdisjoint({"result.json", "model.onnx", "plan.json", "compiled.json", "optimized.onnx", "build.key"})
    assert {"mine.txt", "run.json", "stats.npz", "calibrate.key"} <= left
    assert not dovetail.fit(**arguments, resume=True).failed


def test_a_resumed_run_that_stops_early_leaves_no_earlier_build(arguments: dict[str, Any], tmp_path: Path) -> None:
    shipped = zoo.load("vit_digits")
    calibration = {name: array[:4] for name, array in shipped.calib().items()}
    arguments = {**arguments, "model": shipped.model_path, "calibration": calibration}
    dovetail.fit(**arguments)
    assert (tmp_path / "run/model.onnx").exists()
    result = dovetail.fit(**arguments, thresholds={"normalized_db": 199.0}, resume=True)
    assert result.failed == ("normalized",)
    assert not any((tmp_path / "run" / name).exists() for name in ("model.onnx", "plan.json", "compiled/compiled.json"))


def test_bad_input_for_a_finished_run_keeps_its_result(arguments: dict[str, Any], tmp_path: Path) -> None:
    dovetail.fit(**arguments)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="sample 0 is also in the calibration data"):
        dovetail.fit(**arguments, evaluation=tmp_path / "calib.npz", resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_nothing_outside_the_run_directory_is_deleted(arguments: dict[str, Any], tmp_path: Path) -> None:
    dovetail.fit(**arguments)
    (tmp_path / "precious.txt").write_text("mine")
    stamp = tmp_path / "run/stages/build.key"
    content = json.loads(stamp.read_text())
    files = {**content["files"], "../precious.txt": "", str(tmp_path / "precious.txt"): "", "stages": ""}
    stamp.write_text(json.dumps({**content, "key": "another", "files": files}))
    assert not dovetail.fit(**arguments, resume=True).failed
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_run_json_tells_how_the_run_was_started(arguments: dict[str, Any]) -> None:
    result = dovetail.fit(**arguments, keep=("h=fp32",), require=("numerics",))
    start = record(arguments)
    assert (start["kind"], start["command"], start["model"]) == ("fit", "dovetail.fit", "model.onnx")
    assert datetime.fromisoformat(start["date"]).tzinfo is not None
    assert set(start["options"]) == set(FitOptions.__dataclass_fields__)
    assert start["options"]["keep"] == ["h=fp32"]
    assert start["options"]["thresholds"]["normalized_db"] == 80.0
    assert start["compared"]["model"] == f"SHA-256 {result.model_sha256}"
    assert "--require" not in start["compared"]
    dovetail.fit(**arguments, keep=("h=fp32",), resume=True)
    again = record(arguments)
    assert (again["date"], again["options"]["require"]) == (start["date"], [])
    assert [resumption["command"] for resumption in again["resumed"]] == ["dovetail.fit"]


def test_the_result_has_every_option_and_version(arguments: dict[str, Any], tmp_path: Path) -> None:
    result = dovetail.fit(**arguments, range="mse", shape={"x": (1, 4)})
    stored = json.loads((tmp_path / "run/result.json").read_text())
    assert set(stored["options"]) == set(FitOptions.__dataclass_fields__)
    assert (stored["options"]["range"], stored["options"]["shape"]) == ("mse", {"x": [1, 4]})
    assert stored["options"] == result.options == dovetail.load_result(tmp_path / "run/result.json").options
    assert {"dovetail", "python", "numpy", "onnx", "onnx-ir", "onnxruntime", "ml_dtypes"} <= set(stored["versions"])


def test_folders_made_for_a_failed_run_are_removed_only_while_empty(
    arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run may have begun in the same new folder."""

    def refuse(*_: object, **options: object) -> None:
        (tmp_path / "new/deep/other").mkdir()
        raise InputError("refused")

    monkeypatch.setattr(shipping, "run_trials", refuse)
    with pytest.raises(InputError, match="refused"):
        dovetail.fit(**{**arguments, "output": tmp_path / "new/deep/run"})
    assert [path.name for path in (tmp_path / "new/deep").iterdir()] == ["other"]
