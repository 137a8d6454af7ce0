"""The examples run unchanged."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "digits.py"))["main"](tmp_path)
    out = capsys.readouterr().out
    assert "fidelity    pass" in out
    plain, wider = (float(line.split(": ")[1].split()[0]) for line in out.splitlines()[-2:])
    assert wider > plain
