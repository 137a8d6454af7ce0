"""The command of the sweep: it runs, continues and repeats one graph, and refuses what it cannot do."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import sweep

ROOT = Path(__file__).parents[2]
ARGUMENTS = ["--target", "ort-cpu", "--precision", "w8a8", "--seed", "6"]


def test_a_sweep_is_run_and_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*ARGUMENTS, "--output", str(tmp_path / "out"), "--no-shrink", "--count"]
    assert sweep.main([*command, "1"]) == 0
    assert "1 of 1 graphs pass (100.0 %)" in capsys.readouterr().out
    assert sweep.main([*command, "2"]) == 0
    printed = capsys.readouterr().out
    assert "2 of 2 graphs pass (100.0 %)" in printed
    assert "Wrong while `numerics` passes: 0 of 2." in printed
    assert [line.split()[0] for line in printed.splitlines() if line.endswith(": passed")] == ["1"]
    assert sweep.main([*ARGUMENTS, "--index", "1"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["failures"], outcome["verdicts"]["numerics"]) == ([], "pass")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_sweep_with_its_report_and_its_process(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "bench.sweep", *ARGUMENTS, "--output", str(tmp_path / "out"), "--count", "10000"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(": passed\n")
        children = children_of(process.pid)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "interrupted; the same command continues\n")
    assert "graphs pass" in (tmp_path / "out/report.md").read_text()
    assert children
    end = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < end, f"still running: {children}"
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (ARGUMENTS, "error: --output is missing"),
        ([*ARGUMENTS, "--option", "nothing=1", "--index", "0"], "error: .*nothing"),
        (["--target", "nowhere", "--index", "0"], "error: unknown target 'nowhere'"),
        ([*ARGUMENTS, "--precision", "w9a9", "--index", "0"], "error: unknown precision 'w9a9'"),
        ([*ARGUMENTS, "--recheck", "--output", "nowhere"], "error: nowhere does not exist"),
    ],
)
def test_what_cannot_be_swept_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main(arguments) == 2
    assert re.match(message, capsys.readouterr().err)
