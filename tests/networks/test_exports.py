"""A file is exported once, by whichever process is first; what fails is not kept; other sources are another file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.networks import exports
from tests.networks.exports import exported

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(exports, "_versions", lambda: ("torch 0",))
    return tmp_path / "cache" / "test-exports"


def write_number(path: Path, number: int, log: str) -> None:
    with Path(log).open("a") as file:
        file.write(f"{number}\n")
    path.write_text(str(number))


def write_nothing(path: Path, log: str) -> None:
    path.write_text("a part")
    raise RuntimeError("the exporter failed")


def test_it_is_made_once_for_its_parameters_and_cannot_be_written(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    one, again, two = (exported(write_number, number, log) for number in (1, 1, 2))
    assert one == again != two
    assert (one.read_text(), two.read_text()) == ("1", "2")
    assert Path(log).read_text() == "1\n2\n"
    assert not one.stat().st_mode & 0o222


def test_other_versions_are_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = exported(write_number, 1, str(tmp_path / "log"))
    monkeypatch.setattr(exports, "_versions", lambda: ("torch 1",))
    assert exported(write_number, 1, str(tmp_path / "log")) != first


def test_sources_are_those_of_the_exporter_and_of_all_that_it_imports_here() -> None:
    found = exports._sources("tests.networks.attention_exports")
    assert found == {f"tests.networks.{name}" for name in ("attention_exports", "attention_styles", "torch_export")}


def test_what_fails_is_not_kept(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the exporter failed"):
        exported(write_nothing, "")
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_a_cache_that_cannot_be_written_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "session")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = exported(write_number, 1, str(tmp_path / "log"))
    assert path.is_relative_to(tmp_path / "dovetail-exports-session")


SLOW = """
import sys, time
from pathlib import Path
from tests.networks import exports

def make(path, log):
    time.sleep(0.5)
    with Path(log).open("a") as file:
        file.write("made ")
    path.write_text("whole")

if __name__ == "__main__":
    import slow
    exports._versions = lambda: ("torch 0",)
    print(exports.exported(slow.make, sys.argv[1]).read_text())
"""


def test_three_processes_at_once_make_it_once(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, str(tmp_path / "slow.py"), str(tmp_path / "log")]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=60)[0] for process in running] == ["whole\n"] * 3
    assert (tmp_path / "log").read_text() == "made "


def test_what_nobody_used_for_long_is_removed(cache: Path, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    old, used = exported(write_number, 1, log), exported(write_number, 2, log)
    for path in (old, used):
        os.utime(path.parent, (0, 0))
    exported(write_number, 2, log)
    exported(write_number, 3, log)
    assert not old.parent.exists()
    assert used.exists()
