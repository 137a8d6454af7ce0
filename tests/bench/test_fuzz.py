"""The fuzzer repeats a seed, adds its counts over runs, and notices what it looks for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from bench.fuzz_mutate import Mutant, mutant

from bench import fuzz, fuzz_worker
from dovetail.errors import InputError


def test_a_seed_is_always_the_same_model() -> None:
    assert mutant(7) == mutant(7)
    assert len({mutant(seed).content for seed in range(20)}) == 20
    assert {mutant(seed).kind for seed in range(20)} == {"bytes", "graph", "opset"}


def test_counts_are_added_over_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state.json"
    assert fuzz.main(["check", "--count", "6", "--state", str(state)]) == 0
    assert fuzz.main(["check", "--count", "12", "--state", str(state)]) == 0
    content = json.loads(state.read_text())
    assert (content["next"], sum(content["counts"].values()), content["failures"]) == (12, 12, [])
    assert "check: seeds 0 to 11: " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="is the state of `fuzz check`, not of `fuzz fit`"):
        fuzz.main(["fit", "--state", str(state)])


def _raises(error: Exception) -> Any:
    def check(*arguments: object) -> None:
        raise error

    return check


@pytest.mark.parametrize(
    ("error", "outcome", "why"),
    [
        (InputError("one sentence"), "refused", ""),
        (InputError("two\nlines"), "failed", "not one sentence"),
        (IndexError("pop from empty list"), "failed", "IndexError at "),
        (MemoryError(), "failed", "MemoryError at "),
    ],
)
def test_only_the_errors_of_the_product_are_right(
    error: Exception, outcome: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_worker, "check_file", _raises(error))
    row = _outcome(tmp_path)
    assert row["outcome"] == outcome
    assert row.get("why", "").startswith(why)


def test_files_left_behind_are_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaves(*arguments: object) -> None:
        (tmp_path / "scratch" / "left").write_text("")

    monkeypatch.setattr(fuzz_worker, "check_file", leaves)
    assert "left ['left'] in the temporary folder" in _outcome(tmp_path)["why"]


def test_a_crash_counts_for_its_seed_and_the_rest_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends_at_4(command: list[str], **options: object) -> Any:
        start, stop, lines = int(command[4]), int(command[5]), Path(command[6])
        rows: list[dict[str, Any]] = []
        for seed in range(start, stop):
            rows.append({"begin": seed})
            if seed == 4:
                break
            rows.append({"seed": seed, "outcome": "refused", "kind": "bytes"})
        lines.write_text("\n".join(map(json.dumps, rows)))
        return type("Done", (), {"returncode": -11})

    monkeypatch.setattr(fuzz.subprocess, "run", ends_at_4)
    rows = fuzz.run_batch("check", 3, 7, Path())
    assert [row["seed"] for row in rows] == [3, 4, 5, 6]
    assert [row for row in rows if row["outcome"] == "failed"] == [
        {"seed": 4, "outcome": "failed", "why": "the process ended with code -11"}
    ]


def _outcome(folder: Path) -> dict[str, Any]:
    (folder / "model").mkdir()
    (folder / "scratch").mkdir()
    assert os.environ.get("TMPDIR") != str(folder)
    return fuzz_worker.outcome(
        "check", 0, Mutant(b"", "none", "bytes", "ort-cpu"), folder / "model", folder / "scratch"
    )
