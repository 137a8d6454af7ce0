"""``dovetail sensitivity`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.cli import progress
from tests.cli.conftest import Run

ARGUMENTS = ("sensitivity", "model.onnx", "--target", "ort-cpu", "--calib", "calib.npz", "-o", "out")


@pytest.mark.parametrize("columns", [80, 50])
def test_the_table_fits_the_terminal(run: Run, work: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, err = run(*ARGUMENTS)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= columns
    assert "operators that cost most" in out
    assert out.endswith("out: sensitivity.json, sensitivity.csv\n")
    assert json.loads((work / "out/sensitivity.json").read_bytes())["schema_version"] == 1
    assert (work / "out/run.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--samples", "0"), "--samples 0: expected a whole number from 1"),
        (("--samples", "-1"), "--samples -1: expected a whole number from 1"),
        (("--precision", "fp32"), "--precision fp32: sensitivity is measured for one precision that quantizes"),
        (("--metric", "dovetail.zoo.metrics:top1"), "a metric requires held-out data: add --eval DATA"),
    ],
)
def test_bad_input_is_one_sentence(run: Run, work: Path, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = run(*ARGUMENTS, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (work / "out").exists()


def test_an_existing_run_is_refused_replaced_or_continued(run: Run, work: Path) -> None:
    assert run(*ARGUMENTS, "--first-order")[0] == 0
    code, _, err = run(*ARGUMENTS)
    assert code == 2
    assert "add --force to replace it or --resume to continue it" in err
    assert run(*ARGUMENTS, "--force")[0] == 0
    before = json.loads((work / "out/sensitivity.json").read_bytes())
    assert run(*ARGUMENTS, "--resume")[0] == 0
    after = json.loads((work / "out/sensitivity.json").read_bytes())
    assert after["rows"] == before["rows"]
    code, _, err = run("fit", *ARGUMENTS[1:], "--resume")
    assert code == 2
    assert "another command (was sensitivity, now not set)" in err


def test_an_interrupted_run_is_continued(run: Run, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dovetail.sensitivity_run.measure", interrupt)
        code, _, err = run(*ARGUMENTS)
    assert (code, err) == (130, "dovetail: interrupted; continue the run in out with --resume\n")
    assert run(*ARGUMENTS, "--resume")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr("dovetail.sensitivity_run.measure", interrupt)
        code, _, err = run(*ARGUMENTS, "--force")
    assert (code, err) == (130, "dovetail: interrupted; the earlier run in out is unchanged\n")
    assert (work / "out/sensitivity.json").is_file()


def test_every_part_that_is_reported_has_a_stage_and_a_text() -> None:
    parts = [part for stage in progress.SENSITIVITY_STAGES for part in stage]
    assert len(parts) == len(set(parts))
    assert {"calibrate", "held_out", "estimate", "sensitivity", "verify", "metric"} <= set(parts)
