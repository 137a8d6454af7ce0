"""A backend that is missing must not look like a backend that passed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest

WHOLE_FILE = 'import pytest\npytest.importorskip("no_such_backend")\ndef test_it(): pass\n'
ONE_TEST = 'import pytest\ndef test_it(): pytest.importorskip("no_such_backend")\n'


@pytest.mark.parametrize("content", [WHOLE_FILE, ONE_TEST])
@pytest.mark.parametrize(("ci", "passes"), [("true", False), ("", True)])
def test_a_skip_fails_under_ci(content: str, ci: str, passes: bool, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(content + "def test_other(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "CI": ci}, capture_output=True, text=True, check=False)
    no_tests = content is WHOLE_FILE and done.returncode == 5  # nothing was left to run
    assert (done.returncode == 0 or no_tests) is passes, done.stdout
    assert ("skipped under CI=true" in done.stdout) is not passes


def test_what_runs_without_coverage_is_there() -> None:
    here = Path(__file__).parent
    assert [place for place in conftest.WITHOUT_COVERAGE if not (here / place).exists()] == []
