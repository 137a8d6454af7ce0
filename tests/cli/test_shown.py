"""What is shown while a command runs and at its end: progress, widths, characters that a terminal does not have."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

import dovetail
from dovetail.cli import progress
from tests.cli.conftest import Run
from tests.cli.small_run import ENVIRONMENT, FIT, SLOW_FIT, Start, slow_data


def test_a_reader_that_has_ended_is_no_error(work: Path) -> None:
    command = f'"{sys.executable}" -m dovetail.cli explain | head -n 1; echo "code ${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], cwd=work, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] in ("code 141", "code 0")  # 0 if the pipe takes all of it


def test_a_terminal_that_has_only_ascii(start: Start, work: Path) -> None:
    (work / "model.onnx").rename(work / "modèle.onnx")
    process = start("fit", "modèle.onnx", *FIT[2:], environment={"PYTHONIOENCODING": "ascii"})
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "mod\\xe8le.onnx on ort-cpu" in out


def test_progress_lines_without_a_terminal(start: Start, work: Path) -> None:
    (work / "my_data.py").write_text(slow_data(25))
    source = "from dovetail.cli import progress; progress.INTERVAL_S = 0.1; "
    source += f"from dovetail.cli.main import main; main({list(SLOW_FIT)!r})"
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", source], cwd=work, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert 3 <= len(lines) <= (time.monotonic() - begin) / 0.1
    assert all(line.startswith("dovetail: stage ") and " of 9, 0:" in line for line in lines)
    calibrating = [line for line in lines if "stage 4 of 9, 0:0" in line and ": calibrating" in line]
    assert calibrating
    assert progress.INTERVAL_S == 10.0


def test_every_stage_has_a_number_and_a_text(work: Path) -> None:
    names: list[str] = []
    dovetail.fit(
        work / "model.onnx",
        target="ort-cpu",
        calibration=work / "calib.npz",
        evaluation=work / "eval.npz",
        output=work / "run",
        report=lambda stage, done, total: names.append(stage),
    )
    parts = [part for stage in progress.STAGES for part in stage]
    assert len(parts) == len(set(parts))
    assert len(progress.STAGES) == 9
    assert set(names) <= set(parts)


def on_terminal(work: Path, width: int, *arguments: str) -> tuple[int, str]:
    """Run ``dovetail`` on a pseudo-terminal: its exit code, and what was shown, as plain text."""
    pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
    environment = {**ENVIRONMENT, "COLUMNS": str(width), "TERM": "xterm"}
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dovetail.cli", *arguments]
    with subprocess.Popen(command, cwd=work, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other side has ended
                break
            if not piece:
                break
            shown += piece
        process.wait()
    os.close(ours)
    return process.returncode, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())


@pytest.mark.parametrize("width", [50, 80])
def test_nothing_is_wider_than_the_terminal(work: Path, width: int) -> None:
    (work / "my_data.py").write_text(slow_data(25))
    code, shown = on_terminal(work, width, *SLOW_FIT)
    lines = re.split(r"[\r\n]+", shown)
    assert code == 0
    assert max(map(len, lines)) <= width
    progress_lines = [line for line in lines if "stage 4 of 9  0:0" in line]
    assert any("calibrating" in line for line in progress_lines)
    for arguments in (("explain",), ("targets",), ("check", "model.onnx", "--target", "tensorrt:sm89")):
        code, shown = on_terminal(work, width, *arguments)
        assert code in (0, 1)
        assert max(map(len, re.split(r"[\r\n]+", shown))) <= width, arguments


@pytest.mark.parametrize("format_", ["text", "github", "json", "sarif"])
def test_control_characters_in_findings_are_escaped(run: Run, work: Path, format_: str) -> None:
    name = "gelu\x1b[31m"
    nodes = [onnx.helper.make_node("Erf", ["x"], [name]), onnx.helper.make_node("Relu", [name], ["y"])]
    tensors = [onnx.helper.make_tensor_value_info(label, 1, [1, 1, 1, 1, 1, 1, 4]) for label in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", tensors[:1], tensors[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)]), work / "odd.onnx")
    code, out, _ = run("check", "odd.onnx", "--target", "qnn-htp:sm8550", "--format", format_)
    assert code == 1
    assert "\x1b" not in out
    assert "gelu" in out
    if format_ in ("json", "sarif"):
        assert json.loads(out)


def test_control_characters_in_an_error_message_are_escaped(run: Run, work: Path) -> None:
    code, _, err = run("fit", "a\x1b[31m.onnx", *FIT[2:])
    assert code == 2
    assert "\x1b" not in err
    assert "a\\x1b[31m.onnx" in err
