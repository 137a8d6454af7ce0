"""``dovetail report``, and ``--report`` of the commands that make a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.small_run import FIT


def test_a_page_is_written_with_the_run_or_later(run: Run, work: Path) -> None:
    code, out, _ = run(*FIT, "--report")
    assert code == 0
    assert "report.html" in out
    at_once = (work / "run/report.html").read_bytes()
    (work / "run/report.html").unlink()
    code, out, err = run("report", "run")
    assert (code, out, err) == (0, "run/report.html\n", "")
    assert (work / "run/report.html").read_bytes() == at_once
    assert run("report", "run/result.json", "-o", "page.html")[0] == 0
    assert (work / "page.html").read_bytes() == at_once


def test_without_the_option_there_is_no_page_and_an_old_one_is_removed(run: Run, work: Path) -> None:
    assert run(*FIT, "--report")[0] == 0
    assert run(*FIT, "--resume")[0] == 0
    assert not (work / "run/report.html").exists()


def test_two_runs_are_compared(run: Run, work: Path) -> None:
    assert run(*FIT)[0] == 0
    assert run(*FIT[:-1], "wide", "--precision", "w8a16")[0] == 0
    code, out, err = run("report", "run", "wide")
    assert (code, out, err) == (0, "run/comparison.html\n", "")
    assert "run compared with wide" in (work / "run/comparison.html").read_text()
    assert not (work / "run/report.html").exists()


def _no_folder(work: Path) -> None:
    """RUN does not exist."""


def _other_folder(work: Path) -> None:
    (work / "other").mkdir()
    (work / "other/notes.txt").write_text("x")


def _sensitivity(work: Path) -> None:
    (work / "other").mkdir()
    (work / "other/sensitivity.json").write_text("{}")


def _no_json(work: Path) -> None:
    (work / "other").mkdir()
    (work / "other/result.json").write_text("x")


def _another_document(work: Path) -> None:
    (work / "other").mkdir()
    (work / "other/result.json").write_text(json.dumps({"schema_version": 99}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_no_folder, "other does not exist; expected the run directory of dovetail fit, repair or demo"),
        (_other_folder, "other has no result.json; expected the run directory of a finished dovetail fit"),
        (_sensitivity, "other is a run of dovetail sensitivity; expected one of dovetail fit, repair or demo"),
        (_no_json, "other/result.json cannot be read as a result"),
        (_another_document, "other/result.json is not a result of schema version 4: it has 99"),
    ],
)
@pytest.mark.parametrize("is_second", [False, True])
def test_what_is_not_a_run_is_one_sentence(run: Run, work: Path, make: object, message: str, is_second: bool) -> None:
    assert callable(make)
    make(work)
    assert run(*FIT)[0] == 0
    code, out, err = run("report", *(("run",) if is_second else ()), "other")
    assert (code, out) == (2, "")
    assert err.startswith(f"dovetail: {message}")
    assert err.count("\n") == 1


def test_a_page_that_cannot_be_written_is_one_sentence(run: Run, work: Path) -> None:
    assert run(*FIT)[0] == 0
    code, _, err = run("report", "run", "-o", "missing/page.html")
    assert code == 2
    assert err.startswith("dovetail: missing/page.html cannot be written")
