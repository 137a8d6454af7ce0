"""A compiler that hangs, crashes, runs out of memory or is not installed: not checked, and the run is kept."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import dovetail
from dovetail.errors import UnfinishedError
from dovetail.finding import Status
from dovetail.targets import open_target
from dovetail.targets.child_servers import HAS_SERVERS
from dovetail.targets.qnn_htp.compile import SESSION
from tests.backends.qnn_htp.real_compiler import RELU, compile_text
from tests.processes import calls_of

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

pytestmark = pytest.mark.usefixtures("empty_cache")

SOURCE = Path(dovetail.__file__).parents[1]


def model(folder: Path) -> Path:
    path = folder / "float.onnx"
    text = "g (float[1,8,16] x) => (float[1,8,16] y) { a = Relu(x)  y = Neg(a) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}'), path)
    return path


def fitted(folder: Path, chip: str = "sm8550", resume: bool = False, **option: str) -> dovetail.Result:
    return dovetail.fit(
        model(folder),
        target=f"qnn-htp:{chip}",
        precision="w8a16",
        calibration="random",
        output=folder / "run",
        resume=resume,
        option=option,
    )


def check_kept(folder: Path, result: dovetail.Result) -> None:
    """The run directory has all files up to the compiler, and its result.json equals the result."""
    assert dovetail.load_result(folder / "run" / "result.json") == result
    for name in ("model.onnx", "plan.json", "compile/compile.log"):
        assert (folder / "run" / name).exists()
    assert result.verdicts["normalized"].status is Status.PASS
    for name in ("fidelity", "numerics"):
        assert result.verdicts[name].status is Status.NOT_CHECKED
    assert not result.failed


def test_a_hung_compiler(tmp_path: Path) -> None:
    result = fitted(tmp_path, time_limit_s="0.1")
    verdict = result.verdicts["compiled"]
    assert verdict.status is Status.NOT_CHECKED
    reason = "the HTP compiler did not answer within 0.1 s and was stopped; raise it with --option time_limit_s=N"
    assert verdict.reason == reason
    check_kept(tmp_path, result)


@pytest.mark.parametrize("limit_mb", [300, 600])
def test_a_compiler_that_runs_out_of_memory(limit_mb: int, tmp_path: Path) -> None:
    result = fitted(tmp_path, memory_limit_mb=str(limit_mb))
    verdict = result.verdicts["compiled"]
    assert verdict.status is Status.NOT_CHECKED
    assert "memory" in verdict.reason
    assert "--option memory_limit_mb" in verdict.reason
    check_kept(tmp_path, result)


@contextmanager
def killing_the_compiler(number: signal.Signals) -> Iterator[None]:
    """Send a signal to the first process in which the compiler is called."""
    killed, stop = threading.Event(), threading.Event()

    def look() -> None:
        while not (killed.is_set() or stop.is_set()):
            for call in calls_of(os.getpid(), SESSION):
                os.kill(call, number)
                killed.set()
                return
            time.sleep(0.005)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert killed.is_set()


@pytest.mark.skipif(not HAS_SERVERS, reason="children are not forked on this system")
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_run_with_a_crashed_compiler_can_be_resumed(number: signal.Signals, tmp_path: Path) -> None:
    with killing_the_compiler(number):
        result = fitted(tmp_path)
    verdict = result.verdicts["compiled"]
    assert verdict.status is Status.NOT_CHECKED
    assert verdict.reason == f"the HTP compiler was killed by signal {int(number)} ({number.name})"
    check_kept(tmp_path, result)
    again = fitted(tmp_path, resume=True)
    assert again.verdicts["compiled"].status is Status.PASS


def test_a_hung_emulator_does_not_mean_that_the_graph_does_not_run(tmp_path: Path) -> None:
    compiled = compile_text(RELU, tmp_path)
    short_limit = open_target("qnn-htp:sm8550", {"time_limit_s": "0.05"})
    with pytest.raises(UnfinishedError, match="the HTP emulator did not answer within"):
        list(short_limit.backend.runner.run(compiled, [{"x": np.zeros((1, 8, 16), np.float32)}]))


def test_an_unknown_soc_number(tmp_path: Path) -> None:
    result = fitted(tmp_path, chip="soc999/v75")
    verdict = result.verdicts["compiled"]
    assert verdict.status is Status.NOT_CHECKED
    assert verdict.reason.startswith("the compiler does not know this SoC number")
    check_kept(tmp_path, result)


def packages_but(folder: Path, left_out: str) -> Path:
    """Link all installed packages into a folder, except those whose name starts with ``left_out``."""
    folder.mkdir()
    for path in Path(onnxruntime.__file__).parents[1].iterdir():
        if not path.name.startswith(left_out):
            (folder / path.name).symlink_to(path)
    return folder


def run_with(packages: Path, folder: Path, *more: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Run ``dovetail fit`` with only these packages installed; return the exit code and the verdicts."""
    command = [sys.executable, "-S", "-m", "dovetail.cli", "fit", str(model(folder)), "--target", "qnn-htp:sm8550"]
    command += ["--precision", "w8a16", "--calib", "random", "-o", str(folder / "run"), *more]
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{packages}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (folder / "run" / "result.json").exists(), done.stdout + done.stderr
    verdicts: dict[str, dict[str, str]] = json.loads((folder / "run" / "result.json").read_text())["verdicts"]
    return done.returncode, verdicts


def test_a_missing_wheel(tmp_path: Path) -> None:
    packages = packages_but(tmp_path / "packages", "onnxruntime_qnn")
    code, verdicts = run_with(packages, tmp_path, "--require", "compiled")
    assert code == 3
    assert verdicts["compiled"]["status"] == "not_checked"
    assert verdicts["compiled"]["reason"] == "onnxruntime-qnn is not installed: pip install 'dovetail-fit[qnn]'"


def test_a_wheel_that_cannot_be_imported(tmp_path: Path) -> None:
    packages = packages_but(tmp_path / "packages", "onnxruntime_qnn")
    record = next(Path(onnxruntime.__file__).parents[1].glob("onnxruntime_qnn-*.dist-info"))
    (packages / record.name).symlink_to(record)
    code, verdicts = run_with(packages, tmp_path, "--require", "compiled")
    assert code == 3
    assert " is installed but cannot be imported (No module named 'onnxruntime_qnn')" in verdicts["compiled"]["reason"]


def test_a_wheel_too_old_for_the_installed_onnxruntime(tmp_path: Path) -> None:
    packages = packages_but(tmp_path / "packages", "onnxruntime_qnn-")
    record = next(Path(onnxruntime.__file__).parents[1].glob("onnxruntime_qnn-*.dist-info"))
    old = packages / "onnxruntime_qnn-2.3.0.dist-info"
    old.mkdir()
    shutil.copy(record / "METADATA", old)
    text = re.sub(r"(?m)^Version: .*$", "Version: 2.3.0", (old / "METADATA").read_text(), count=1)
    (old / "METADATA").write_text(text)
    code, verdicts = run_with(packages, tmp_path, "--require", "compiled")
    assert code == 3
    reason = (
        f"onnxruntime-qnn 2.3.0 is too old for onnxruntime {onnxruntime.__version__}, its provider does not start: "
    )
    assert verdicts["compiled"]["reason"] == reason + "pip install 'dovetail-fit[qnn]'"
