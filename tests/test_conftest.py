"""A missing backend must not look like one that passed."""

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
    process = subprocess.run(command, env={**os.environ, "CI": ci}, capture_output=True, text=True, check=False)
    no_tests = content is WHOLE_FILE and process.returncode == 5  # pytest's code for no tests collected
    assert (process.returncode == 0 or no_tests) is passes, process.stdout
    assert ("skipped under CI=true" in process.stdout) is not passes


def test_paths_without_coverage_exist() -> None:
    here = Path(__file__).parent
    assert [path for path in conftest.WITHOUT_COVERAGE if not (here / path).exists()] == []
