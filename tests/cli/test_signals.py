"""Signals and locks, with the command line as a real process: interrupted, resumed, restored, never two at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.targets.child_servers import HAS_SERVERS
from tests.cli.conftest import Run
from tests.cli.small_run import ENVIRONMENT, FIT, SLOW_FIT, Start, slow_data, wait_for_file
from tests.processes import calls_of, is_running, wait_for


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_a_run_which_can_be_resumed(start: Start, work: Path, number: signal.Signals) -> None:
    process = start(*SLOW_FIT)
    wait_for_file(work / "started")
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "dovetail: interrupted; continue the run in run with --resume\n")
    assert json.loads((work / "run/run.json").read_text())["command"].startswith("dovetail fit model.onnx")
    assert not list(work.glob(".*"))  # no lock, nothing aside
    (work / "my_data.py").write_text(slow_data(3))
    resumed = start(*SLOW_FIT, "--resume")
    resumed.communicate(timeout=60)
    assert resumed.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_was_being_replaced_is_restored(start: Start, run: Run, work: Path, number: signal.Signals) -> None:
    assert run(*FIT)[0] == 0
    before = {path: path.read_bytes() for path in (work / "run").rglob("*") if path.is_file()}
    process = start(*SLOW_FIT, "--force")
    wait_for_file(work / "started")
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "dovetail: interrupted; the earlier run in run is unchanged\n")
    assert {path: path.read_bytes() for path in (work / "run").rglob("*") if path.is_file()} == before
    assert not list(work.glob(".*"))


LOWERING = "dovetail.targets.xnnpack.lower"


@pytest.mark.skipif(not HAS_SERVERS, reason="children are not forked on this system")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_compiler_does_not_outlive_the_run(start: Start, work: Path, number: signal.Signals, code: int) -> None:
    pytest.importorskip("executorch", reason="needs the package executorch")
    process = start("fit", "model.onnx", "--target", "xnnpack", *FIT[4:], "--no-cache")
    calls: list[int] = []
    assert wait_for(lambda: process.poll() is not None or calls.extend(calls_of(process.pid, LOWERING)) or calls, 60)
    assert calls, process.communicate()
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == code
    assert wait_for(lambda: not any(is_running(call) for call in calls), 10)


def test_a_signal_that_the_caller_ignores_stays_ignored(start: Start, work: Path) -> None:
    """As ``nohup`` does with SIGHUP."""
    (work / "my_data.py").write_text(slow_data(25))
    source = "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
    source += f"from dovetail.cli.main import main; main({list(SLOW_FIT)!r})"
    with subprocess.Popen([sys.executable, "-c", source], cwd=work, env=ENVIRONMENT, stdout=subprocess.DEVNULL) as job:
        wait_for_file(work / "started")
        job.send_signal(signal.SIGHUP)
        assert job.wait(60) == 0


def test_a_second_run_into_the_same_folder_is_refused(start: Start, run: Run, work: Path) -> None:
    first = start(*SLOW_FIT)
    wait_for_file(work / "started")
    for options in ((), ("--force",), ("--resume",)):
        code, out, err = run(*FIT, *options)
        assert (code, out) == (2, "")
        assert f"run: another run is writing to this folder (process {first.pid}); wait until it ends" in err
    code, _, err = run("verify", "run")
    assert code == 2
    assert "run/result.json cannot be read as a result" in err
    assert first.poll() is None
    assert (work / "run/run.json").exists()
    assert run(*FIT[:-1], "other")[0] == 0  # beside it, at the same time


def test_a_lock_of_a_process_that_was_killed_does_not_block(start: Start, run: Run, work: Path) -> None:
    process = start(*SLOW_FIT)
    wait_for_file(work / "started")
    process.kill()
    process.wait()
    assert (work / ".run.lock").exists()  # nobody could remove it
    assert run(*FIT, "--force")[0] == 0
    assert not (work / ".run.lock").exists()
