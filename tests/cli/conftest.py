"""Runs the command line, in this process or in another one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from dovetail.cli.main import main
from tests.cli.small_run import ENVIRONMENT, MODEL, slow_data

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process: exit code, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return call


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a test: a model, calibration and held-out data, and a module with slow data."""
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    rows = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    np.savez(tmp_path / "calib.npz", x=rows[:8])
    np.savez(tmp_path / "eval.npz", x=rows[8:], labels=np.zeros(8, np.int64))
    (tmp_path / "my_data.py").write_text(slow_data())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _with_default_signals() -> None:
    """A shell that starts the tests in the background, or nohup, ignores signals, which a process inherits."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def start(work: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``dovetail`` with arguments; what is still running is killed in the end."""
    started: list[subprocess.Popen[str]] = []

    def call(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dovetail.cli", *arguments]
        variables = {**ENVIRONMENT, **(environment or {})}
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(
                command, cwd=work, env=variables, stdout=pipe, stderr=pipe, text=True, preexec_fn=_with_default_signals
            )
        )
        return started[-1]

    yield call
    for process in started:
        process.kill()
        process.communicate()
