"""The command line as a real process: signals, locks, exit codes, progress, and one sentence for what goes wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.cli import progress
from tests.cli.conftest import Run

MODEL = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,4] x) => (float[1,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}> { h = Relu(x)  y = MatMul(h, w) }"""
FIT = ("fit", "model.onnx", "--target", "ort-cpu", "--calib", "calib.npz", "-o", "run")
SLOW = """
import time
import numpy as np


def slow():
    open("started", "w").close()
    for number in range(3000):
        time.sleep(0.02)
        yield {"x": np.full((1, 4), number % 7, np.float32)}


def broken():
    yield {"x": np.ones((1, 4), np.float32)}
    raise MemoryError
"""
SLOW_FIT = (*FIT[:4], "--calib", "my_data:slow", "-o", "run")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    rows = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    np.savez(tmp_path / "calib.npz", x=rows[:8])
    np.savez(tmp_path / "eval.npz", x=rows[8:], labels=np.zeros(8, np.int64))
    (tmp_path / "my_data.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def start(work: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``dovetail`` with arguments; what is still running is killed in the end."""
    started: list[subprocess.Popen[str]] = []

    def call(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dovetail.cli", *arguments]
        variables = {**os.environ, "PYTHONPATH": str(Path(dovetail.__file__).parents[1]), **(environment or {})}
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(
                command, cwd=work, env=variables, stdout=pipe, stderr=pipe, text=True, preexec_fn=_default_signals
            )
        )
        return started[-1]

    yield call
    for process in started:
        process.kill()
        process.communicate()


def _default_signals() -> None:
    """A shell that starts the tests in the background ignores SIGINT, and nohup SIGHUP; a process inherits both."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


Start = Callable[..., subprocess.Popen[str]]


def wait_for(path: Path, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_a_run_which_can_be_resumed(start: Start, work: Path, number: signal.Signals) -> None:
    process = start(*SLOW_FIT)
    wait_for(work / "started")
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "dovetail: interrupted; continue the run in run with --resume\n")
    assert json.loads((work / "run/run.json").read_text())["command"].startswith("dovetail fit model.onnx")
    assert not list(work.glob(".*"))  # no lock, nothing aside
    (work / "my_data.py").write_text(SLOW.replace("3000", "30"))
    resumed = start(*SLOW_FIT, "--resume")
    resumed.communicate(timeout=60)
    assert resumed.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_was_being_replaced_is_restored(start: Start, run: Run, work: Path, number: signal.Signals) -> None:
    assert run(*FIT)[0] == 0
    before = {path: path.read_bytes() for path in (work / "run").rglob("*") if path.is_file()}
    process = start(*SLOW_FIT, "--force")
    wait_for(work / "started")
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "dovetail: interrupted; the earlier run in run is unchanged\n")
    assert {path: path.read_bytes() for path in (work / "run").rglob("*") if path.is_file()} == before
    assert not list(work.glob(".*"))


def children_of(pid: int) -> list[int]:
    """The running children of a process."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended
            continue
        if int(parent) == pid and state != "Z":
            children.append(int(stat.parent.name))
    return children


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_compiler_does_not_outlive_the_run(start: Start, work: Path, number: signal.Signals, code: int) -> None:
    pytest.importorskip("executorch", reason="needs the package executorch")
    process = start("fit", "model.onnx", "--target", "xnnpack", *FIT[4:], "--no-cache")
    end = time.monotonic() + 60
    while not (children := children_of(process.pid)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == code
    end = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < end, f"still running: {children}"
        time.sleep(0.02)


def test_a_signal_that_the_caller_ignores_stays_ignored(start: Start, work: Path) -> None:
    """As ``nohup`` does with SIGHUP."""
    (work / "my_data.py").write_text(SLOW.replace("3000", "100"))
    source = "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
    source += f"from dovetail.cli.main import main; main({list(SLOW_FIT)!r})"
    environment = {**os.environ, "PYTHONPATH": str(Path(dovetail.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", source], cwd=work, env=environment, stdout=subprocess.DEVNULL) as job:
        wait_for(work / "started")
        job.send_signal(signal.SIGHUP)
        assert job.wait(60) == 0


@pytest.mark.parametrize("options", [(), ("--force",), ("--resume",)])
def test_a_second_run_into_the_same_folder_is_refused(
    start: Start, run: Run, work: Path, options: tuple[str, ...]
) -> None:
    first = start(*SLOW_FIT)
    wait_for(work / "started")
    code, out, err = run(*FIT, *options)
    assert (code, out) == (2, "")
    assert f"run: another run is writing to this folder (process {first.pid}); wait until it has ended" in err
    assert first.poll() is None
    assert (work / "run/run.json").exists()
    assert run(*FIT[:-1], "other")[0] == 0  # beside it, at the same time


def test_a_lock_of_a_process_that_was_killed_does_not_block(start: Start, run: Run, work: Path) -> None:
    process = start(*SLOW_FIT)
    wait_for(work / "started")
    process.kill()
    process.wait()
    assert (work / ".run.lock").exists()  # nobody could remove it
    assert run(*FIT, "--force")[0] == 0
    assert not (work / ".run.lock").exists()


def test_device_outputs_are_not_verified_while_a_run_is_written(start: Start, run: Run, work: Path) -> None:
    process = start(*SLOW_FIT)
    wait_for(work / "started")
    code, _, err = run("verify", "run")
    assert code == 2
    assert "run/result.json cannot be read as a result" in err
    process.kill()


def test_an_unexpected_error_is_one_sentence_with_its_details_in_a_file(run: Run, work: Path) -> None:
    arguments = (*FIT[:4], "--calib", "my_data:broken", "-o", "run")
    code, out, err = run(*arguments)
    assert (code, out) == (4, "")
    assert err == "dovetail: out of memory; details are in run/error.txt; continue the run with --resume\n"
    details = (work / "run/error.txt").read_text()
    assert "Traceback (most recent call last)" in details
    assert f"command: dovetail {' '.join(arguments)}\n" in details
    assert f"dovetail: {dovetail.__version__}\n" in details
    (work / "my_data.py").write_text(SLOW.replace("    raise MemoryError", "    return"))
    sys.modules.pop("my_data")
    assert run(*arguments, "--resume")[0] == 0
    assert not (work / "run/error.txt").exists()


def test_a_traceback_is_shown_with_debug_only(run: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **options: object) -> None:
        raise AssertionError("\x1b[31ma bug\nin two lines")

    monkeypatch.setattr("dovetail.pipeline.collect", fail)
    code, _, err = run(*FIT)
    expected = "dovetail: unexpected AssertionError: \\x1b[31ma bug\\nin two lines; details are in run/error.txt\n"
    assert (code, err) == (4, expected)
    for arguments in ((*FIT, "--resume", "--debug"), ("--debug", *FIT, "--resume")):
        code, _, err = run(*arguments)
        assert code == 4
        assert err.startswith("Traceback (most recent call last)")
        assert err.endswith(expected)
    code, _, err = run("fit", "none.onnx", *FIT[2:-1], "new", "--debug")
    assert code == 2
    assert "Traceback" in err
    assert "none.onnx" in err.splitlines()[-1]


def test_details_go_to_the_temporary_folder_without_a_run(
    run: Run, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **options: object) -> None:
        raise ValueError

    monkeypatch.setattr("dovetail.checking.check_file", fail)
    monkeypatch.setattr("tempfile.tempdir", str(work))
    code, _, err = run("check", "model.onnx", "--target", "ort-cpu")
    assert code == 4
    (details,) = work.glob("dovetail-error-*.txt")
    assert err == f"dovetail: unexpected ValueError; details are in {details}\n"
    assert "ValueError" in details.read_text()
    monkeypatch.setattr("tempfile.tempdir", str(work / "nowhere"))
    code, _, err = run("check", "model.onnx", "--target", "ort-cpu")
    assert (code, "the details could not be written: see them with --debug" in err) == (4, True)


def test_a_restored_run_does_not_get_the_details_of_another(
    run: Run, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **options: object) -> None:
        raise OSError(28, "No space left on device", "a file")

    assert run(*FIT)[0] == 0
    monkeypatch.setattr("dovetail.pipeline.collect", fail)
    monkeypatch.setattr("tempfile.tempdir", str(work))
    code, _, err = run(*FIT, "--force")
    assert code == 4
    assert err.startswith(f"dovetail: no space left on the disk for a file; details are in {work}")
    assert (work / "run/result.json").exists()
    assert not (work / "run/error.txt").exists()


def test_files_that_cannot_be_written_leave_one_sentence_and_nothing_half_written(work: Path) -> None:
    """``ulimit -f 4``: no file may be larger than 4 kB."""
    environment = {**os.environ, "PYTHONPATH": str(Path(dovetail.__file__).parents[1])}
    command = ["bash", "-c", 'ulimit -f 4; exec "$@"', "bash", sys.executable, "-m", "dovetail.cli", *FIT]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("dovetail: unexpected OSError: [Errno 27] File too large")
    assert done.stderr.count("\n") == 1
    assert not list(work.rglob("*.part"))


def test_a_run_under_a_memory_limit_of_the_shell(work: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(dovetail.__file__).parents[1])}
    command = ["bash", "-c", 'ulimit -v 6000000; exec "$@"', "bash", sys.executable, "-m", "dovetail.cli", *FIT]
    done = subprocess.run([*command, "--no-cache"], cwd=work, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((work / "run/result.json").read_text())["verdicts"]["compiled"]["status"] == "pass"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_the_output_is_exit_code_4(work: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(dovetail.__file__).parents[1]), "TMPDIR": str(work)}
    command = [sys.executable, "-m", "dovetail.cli", *FIT]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=work, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4
    assert done.stderr.startswith("dovetail: no space left on the disk; details are in ")
    assert done.stderr.count("\n") == 1
    assert (work / "run/result.json").exists()


def test_a_reader_that_has_ended_is_no_error(work: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(dovetail.__file__).parents[1])}
    command = f'"{sys.executable}" -m dovetail.cli explain | head -n 1; echo "code ${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], cwd=work, env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] in ("code 141", "code 0")  # 0 if the pipe takes all of it


def test_a_terminal_that_has_only_ascii(start: Start, work: Path) -> None:
    (work / "model.onnx").rename(work / "modèle.onnx")
    process = start("fit", "modèle.onnx", *FIT[2:], environment={"PYTHONIOENCODING": "ascii"})
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "mod\\xe8le.onnx on ort-cpu" in out


def test_progress_lines_without_a_terminal(start: Start, work: Path) -> None:
    (work / "my_data.py").write_text(SLOW.replace("3000", "150"))
    source = "from dovetail.cli import progress; progress.INTERVAL_S = 0.5; "
    source += f"from dovetail.cli.main import main; main({list(SLOW_FIT)!r})"
    environment = {**os.environ, "PYTHONPATH": str(Path(dovetail.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", source], cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert 3 <= len(lines) <= 40
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
    environment = {**os.environ, "PYTHONPATH": str(Path(dovetail.__file__).parents[1])}
    environment |= {"COLUMNS": str(width), "TERM": "xterm"}
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
    (work / "my_data.py").write_text(SLOW.replace("3000", "100"))
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


def test_demo_replaces_only_demos(run: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(*FIT)[0] == 0
    before = (work / "run/result.json").read_bytes()
    code, _, err = run("demo", "-o", "run")
    assert (code, err) == (2, "dovetail: run contains a run that is not a demo; add --force to replace it\n")
    assert (work / "run/result.json").read_bytes() == before
    for arguments in (("--force",), ()):  # then it is a demo, which is replaced
        assert run("demo", "-o", "run", *arguments)[0] == 0
        assert json.loads((work / "run/run.json").read_text())["kind"] == "demo"
    (work / "run/run.json").write_text("{}")
    assert run("demo", "-o", "run")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--resume",), "run does not exist, so there is no run to continue; leave out --resume"),
        (("--resume", "--force"), "--force replaces a run and --resume continues it: they cannot be combined"),
    ],
)
def test_resuming_nothing_is_refused(run: Run, work: Path, arguments: tuple[str, ...], message: str) -> None:
    assert run(*FIT, *arguments) == (2, "", f"dovetail: {message}\n")
    assert not (work / "run").exists()


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
