"""The run directory: an error leaves everything as it was, and resuming does not use files that were changed."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail import shipping
from dovetail.errors import InputError

BODY = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,4] x) => (float[1,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}> { h = Relu(x)  y = MatMul(h, w) }"""
ROWS = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, object]:
    onnx.save(onnx.parser.parse_model(BODY), tmp_path / "model.onnx")
    np.savez(tmp_path / "calib.npz", x=ROWS)
    np.savez(tmp_path / "nan.npz", x=np.where(ROWS.max() == ROWS, np.nan, ROWS))
    return {
        "model": tmp_path / "model.onnx",
        "target": "ort-cpu",
        "calibration": tmp_path / "calib.npz",
        "output": tmp_path / "runs/run",
    }


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("wrong", [{"calibration": "nan.npz"}, {"keep": ("nobody=fp32",)}])
def test_an_error_while_replacing_keeps_the_earlier_run(
    arguments: dict[str, object], wrong: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dovetail.fit(**arguments)
    before = content(tmp_path)
    with pytest.raises(InputError):
        dovetail.fit(**{**arguments, **wrong}, force=True)
    assert content(tmp_path) == before
    dovetail.fit(**arguments, force=True)
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["run"]


def test_an_error_leaves_nothing(arguments: dict[str, object], tmp_path: Path) -> None:
    before = content(tmp_path)
    bad = {**arguments, "calibration": tmp_path / "nan.npz"}
    with pytest.raises(InputError, match="contains NaN"):
        dovetail.fit(**bad)
    assert content(tmp_path) == before  # including the parent folder, which was made for the run
    (tmp_path / "runs/run").mkdir(parents=True)
    with pytest.raises(InputError, match="contains NaN"):
        dovetail.fit(**bad)
    assert list((tmp_path / "runs").rglob("*")) == [tmp_path / "runs/run"]


@pytest.mark.parametrize(
    "ended", [OSError(errno.ENOSPC, "No space left on device"), ValueError("a bug"), KeyboardInterrupt(), SystemExit(1)]
)
def test_an_earlier_run_is_restored_whatever_ends_its_replacement(
    arguments: dict[str, object], ended: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object, **options: object) -> None:
        raise ended

    dovetail.fit(**arguments)
    before = content(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shipping, "run_trials", end)
        with pytest.raises(type(ended)):
            dovetail.fit(**arguments, force=True)
    assert content(tmp_path) == before
    assert not dovetail.fit(**arguments, resume=True).failed


def test_an_earlier_run_that_cannot_be_moved_is_kept(
    arguments: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    dovetail.fit(**arguments)
    before = content(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(InputError, match="cannot be written"):
            dovetail.fit(**arguments, force=True)
    assert content(tmp_path) == before


def test_the_error_says_where_an_earlier_run_is_that_cannot_be_restored(
    arguments: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run directory cannot be renamed once the new run has begun."""
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if target.name == "unfinished":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return rename(self, target)

    dovetail.fit(**arguments)
    before = content(Path(str(arguments["output"])))
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(InputError, match="the earlier run could not be restored; it is in") as error:
        dovetail.fit(**{**arguments, "calibration": tmp_path / "nan.npz"}, force=True)
    assert content(Path(str(error.value).partition(" is in ")[2].partition(" (")[0])) == before


@pytest.mark.parametrize("content", [None, b"", b"not what was written"])
def test_a_stage_file_that_was_changed_is_made_again(arguments: dict[str, object], content: bytes | None) -> None:
    dovetail.fit(**arguments)
    run = Path(str(arguments["output"]))
    files = [p for p in run.rglob("*") if p.is_file() and p.name != "run.json"]
    assert {"stats.npz", "normalized.onnx", "plan.json", "optimized.onnx", "compiled.json"} <= {p.name for p in files}
    before = {p: p.read_bytes() for p in files}
    for file in files:
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        assert not dovetail.fit(**arguments, resume=True).failed, file
        assert file.exists()
        if file.suffix == ".onnx":
            assert file.read_bytes() == before[file]


def test_resume_does_not_use_a_plan_that_was_edited_in_place(arguments: dict[str, object]) -> None:
    first = dovetail.fit(**arguments)
    path = Path(str(arguments["output"])) / "plan.json"
    path.write_text(path.read_text().replace('"zero_point": 0', '"zero_point": 7'))
    assert dovetail.fit(**arguments, resume=True).plan == first.plan
