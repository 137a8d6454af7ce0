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


@pytest.mark.parametrize(("ci", "passes"), [("true", False), ("", True)])
def test_a_skip_fails_under_ci(ci: str, passes: bool, tmp_path: Path) -> None:
    """A file that is skipped at collection, and a skipped test: both in one process."""
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (tmp_path / "test_file.py").write_text(WHOLE_FILE)
    (tmp_path / "test_one.py").write_text(ONE_TEST + "def test_other(): pass\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rfE",
        "--continue-on-collection-errors",
        "-p",
        "no:cacheprovider",
    ]
    environment = {**os.environ, "CI": ci}
    process = subprocess.run([*command, str(tmp_path)], env=environment, capture_output=True, text=True, check=False)
    assert (process.returncode == 0) is passes, process.stdout
    failed = [line for line in process.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    names = [] if passes else ["test_file.py", "test_one.py::test_it"]
    assert sorted(line.split()[1].rpartition("/")[2] for line in failed) == names, process.stdout
    assert process.stdout.count("skipped under CI=true") >= len(names)


def test_paths_without_coverage_exist() -> None:
    here = Path(__file__).parent
    assert [path for path in conftest.WITHOUT_COVERAGE if not (here / path).exists()] == []


def test_files_that_lower_in_their_own_process_are_one_group() -> None:
    folder = Path(__file__).parent / "backends/xnnpack"
    files = {path.name for path in folder.glob("test_*.py") if conftest.lowers_in_process(path)}
    assert {"test_layouts.py", "test_lowering.py", "test_rules.py"} <= files
    assert "test_fit.py" not in files


HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""
HIDDEN = ("torch", "torchao", "transformers", "executorch", "onnxscript")


def test_without_torch_collection_skips_with_a_reason(tmp_path: Path) -> None:
    here = Path(__file__).parent
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(packages=HIDDEN))
    command = [sys.executable, "-m", "pytest", "-qq", "-rs", "--collect-only", "-p", "no:cacheprovider", str(here)]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "CI": ""}
    done = subprocess.run(command, env=environment, cwd=here.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(skipped) > 5
    assert [line for line in skipped if ": needs the package " not in line] == []


SHARED = """
import pytest, time
@pytest.fixture(scope="module")
def shared():
    with open({log!r}, "a") as file:
        file.write("made ")
@pytest.mark.parametrize("number", range(6))
def test_it(shared, number): time.sleep(0.05)
"""
ALONE = """
import pytest, time
@pytest.mark.parametrize("number", range(12))
def test_alone(number): time.sleep(0.05)
"""


def test_a_file_that_shares_a_fixture_is_run_by_one_worker_and_others_by_both(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(SHARED.format(log=str(tmp_path / "log")))
    (tmp_path / "test_alone.py").write_text(ALONE)
    options = ["--numprocesses", "2", "--dist", "loadgroup", "-v", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "log").read_text() == "made "
    workers = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("[gw") and "test_alone" in line}
    assert workers == {"[gw0]", "[gw1]"}
