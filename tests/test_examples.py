"""The examples run unchanged and print what they promise."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_digits_prints_verdicts_and_a_gain_from_16_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "digits.py"))["main"](tmp_path)
    out = capsys.readouterr().out
    assert "fidelity    pass" in out
    w8a8_db, mixed_db = (float(line.split(": ")[1].split()[0]) for line in out.splitlines()[-2:])
    assert mixed_db > w8a8_db
