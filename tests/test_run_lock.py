"""The lock of a run directory whose parent folder cannot be written, as that of a mounted volume."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail import run_lock
from dovetail.errors import InputError

BODY = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,4] x) => (float[1,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}> { h = Relu(x)  y = MatMul(h, w) }"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tests may run as root, who can write everywhere: the answer of the system is replaced."""
    place = tmp_path / "run"
    place.mkdir()
    monkeypatch.setattr(run_lock.os, "access", lambda path, mode: Path(path) != tmp_path)
    return place


def test_the_lock_is_inside_then(place: Path) -> None:
    with run_lock.run_lock(place):
        assert [path.name for path in place.iterdir()] == [".lock"]
        with pytest.raises(InputError, match="another run is writing to this folder"), run_lock.run_lock(place):
            pass
    assert list(place.iterdir()) == []


def test_a_run_there_is_made_resumed_and_undone(place: Path, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(BODY), tmp_path / "model.onnx")
    rows = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    arguments = {"model": tmp_path / "model.onnx", "target": "ort-cpu", "output": place}
    with pytest.raises(InputError, match="contains NaN"):
        dovetail.fit(**arguments, calibration={"x": rows * np.float32(np.nan)})
    assert list(place.iterdir()) == []
    dovetail.fit(**arguments, calibration={"x": rows})
    dovetail.fit(**arguments, calibration={"x": rows}, resume=True)
    assert not (place / ".lock").exists()


def test_a_file_system_without_locks_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl", reason="Windows locks files in another way")

    def refuse(*_: object) -> None:
        raise OSError(run_lock.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with run_lock.run_lock(tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_many_processes_at_once_never_hold_the_same_lock(tmp_path: Path) -> None:
    """Each creates a folder while it holds the lock; two at once would find it there."""
    source = f"""
import sys, time
from pathlib import Path
from dovetail.errors import InputError
from dovetail.run_lock import run_lock
held, taken = 0, Path({str(tmp_path / "taken")!r})
end = time.monotonic() + 1.0
while time.monotonic() < end:
    try:
        with run_lock(Path({str(tmp_path / "run")!r})):
            taken.mkdir()
            held += 1
            taken.rmdir()
    except InputError:
        pass
sys.exit(0 if held else 3)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(dovetail.__file__).parents[1])}
    processes = [subprocess.Popen([sys.executable, "-c", source], env=environment) for _ in range(4)]
    codes = [process.wait() for process in processes]
    assert set(codes) <= {0, 3}
    assert 0 in codes
    assert list(tmp_path.iterdir()) == []
