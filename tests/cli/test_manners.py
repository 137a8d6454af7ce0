"""One sentence for what goes wrong, its exit code, and what is left in the run directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail
from tests.cli.conftest import Run
from tests.cli.small_run import ENVIRONMENT, FIT, slow_data


def test_an_unexpected_error_is_one_sentence_with_its_details_in_a_file(run: Run, work: Path) -> None:
    arguments = (*FIT[:4], "--calib", "my_data:broken", "-o", "run")
    code, out, err = run(*arguments)
    assert (code, out) == (4, "")
    assert err == "dovetail: out of memory; details are in run/error.txt; continue the run with --resume\n"
    details = (work / "run/error.txt").read_text()
    assert "Traceback (most recent call last)" in details
    assert f"command: dovetail {' '.join(arguments)}\n" in details
    assert f"dovetail: {dovetail.__version__}\n" in details
    (work / "my_data.py").write_text(slow_data().replace("    raise MemoryError", "    return"))
    sys.modules.pop("my_data")
    assert run(*arguments, "--resume")[0] == 0
    assert not (work / "run/error.txt").exists()


def test_a_traceback_is_shown_with_debug_only(run: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **options: object) -> None:
        raise AssertionError("\x1b[31ma bug\nin two lines")

    monkeypatch.setattr("dovetail.float_stages.collect", fail)
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
    assert (code, "the details could not be written; add --debug to print them" in err) == (4, True)


def test_a_restored_run_does_not_get_the_details_of_another(
    run: Run, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **options: object) -> None:
        raise OSError(28, "No space left on device", "a file")

    assert run(*FIT)[0] == 0
    monkeypatch.setattr("dovetail.float_stages.collect", fail)
    monkeypatch.setattr("tempfile.tempdir", str(work))
    code, _, err = run(*FIT, "--force")
    assert code == 4
    assert err.startswith(f"dovetail: no space left on the disk for a file; details are in {work}")
    assert (work / "run/result.json").exists()
    assert not (work / "run/error.txt").exists()


def test_files_that_cannot_be_written_leave_one_sentence_and_nothing_half_written(work: Path) -> None:
    """``ulimit -f 4``: no file may be larger than 4 kB."""
    command = ["bash", "-c", 'ulimit -f 4; exec "$@"', "bash", sys.executable, "-m", "dovetail.cli", *FIT]
    done = subprocess.run(command, cwd=work, env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("dovetail: unexpected OSError: [Errno 27] File too large")
    assert done.stderr.count("\n") == 1
    assert not list(work.rglob("*.part"))


def test_a_run_under_a_memory_limit_of_the_shell(work: Path) -> None:
    command = ["bash", "-c", 'ulimit -v 6000000; exec "$@"', "bash", sys.executable, "-m", "dovetail.cli", *FIT]
    done = subprocess.run([*command, "--no-cache"], cwd=work, env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((work / "run/result.json").read_text())["verdicts"]["compiled"]["status"] == "pass"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_the_output_is_exit_code_4(work: Path) -> None:
    environment = {**ENVIRONMENT, "TMPDIR": str(work)}
    command = [sys.executable, "-m", "dovetail.cli", *FIT]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=work, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4
    assert done.stderr.startswith("dovetail: no space left on the disk; details are in ")
    assert done.stderr.count("\n") == 1
    assert (work / "run/result.json").exists()


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
        (("--resume",), "run does not exist, so there is no run to resume; remove --resume"),
        (("--resume", "--force"), "--force replaces a run and --resume continues it; use only one of them"),
    ],
)
def test_resuming_nothing_is_refused(run: Run, work: Path, arguments: tuple[str, ...], message: str) -> None:
    assert run(*FIT, *arguments) == (2, "", f"dovetail: {message}\n")
    assert not (work / "run").exists()
