"""Entries of the compile cache: a bad one is replaced, several processes are safe, the oldest go first."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

import msgspec
import pytest

from dovetail.errors import InputError
from dovetail.files import file_sha256
from dovetail.targets import tool_cache
from dovetail.targets.tool_cache import CacheRecord, ToolCache, user_cache
from dovetail.targets.tool_call import Task, ToolSession, tool_session
from tests.targets.cached_calls import MADE, call, calls, compiled, files

pytestmark = pytest.mark.usefixtures("own_cache")


def the_entry() -> Path:
    (entry,) = user_cache().folder.glob("??/*")
    return entry


def _truncate(entry: Path) -> None:
    path = entry / "record.gz"
    path.write_bytes(path.read_bytes()[:-9])


def _other_text(entry: Path) -> None:
    (entry / "files/out.txt").write_text("ABD")


def _lost_file(entry: Path) -> None:
    (entry / "files/extra/list.txt").unlink()


def _no_gzip(entry: Path) -> None:
    (entry / "record.gz").write_bytes(b"something else")


def _foreign(entry: Path) -> None:
    (entry / "record.gz").write_bytes(gzip.compress(b'{"format": "of another program"}'))


def _rewritten(entry: Path, **changes: object) -> None:
    path = entry / "record.gz"
    record = {**msgspec.json.decode(gzip.decompress(path.read_bytes())), **changes}
    path.write_bytes(gzip.compress(msgspec.json.encode(record)))


def _other_key(entry: Path) -> None:
    _rewritten(entry, key="0" * 64)


def _outside(entry: Path) -> None:
    _rewritten(entry, files={"../../../escaped.txt": "0" * 64})


def _null_byte(entry: Path) -> None:
    _rewritten(entry, files={"a\0b": "0" * 64})


def _a_file(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("no folder")


def _a_link(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.symlink_to(entry.parent)


def _prefix_is_a_file(entry: Path) -> None:
    shutil.rmtree(entry.parent)
    entry.parent.write_text("no folder")


def _empty(entry: Path) -> None:
    (entry / "record.gz").write_bytes(b"")


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _other_text,
        _lost_file,
        _no_gzip,
        _foreign,
        _other_key,
        _outside,
        _null_byte,
        _a_file,
        _a_link,
        _prefix_is_a_file,
        _empty,
    ],
)
def test_a_corrupt_or_foreign_entry_is_ignored_and_replaced(damage: object, tmp_path: Path) -> None:
    compiled(tmp_path, call(tmp_path))
    damage(the_entry())  # type: ignore[operator]
    for folder in ("b", "c"):
        compiled(tmp_path, call(tmp_path), folder)
        assert files(tmp_path / folder) == MADE
    assert calls(tmp_path) == 2, "compiled again once, then taken from the new entry"
    assert not (tmp_path / "escaped.txt").exists()
    user_cache().clear()
    assert list(user_cache().folder.glob("*/*")) == []


def test_an_error_of_the_destination_leaves_the_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(tmp_path, call(tmp_path))

    def full(source: Path, destination: Path) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "other").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(tool_cache.shutil, "copyfile", full)
        assert user_cache().load(the_entry().name, tmp_path / "other") is None
    assert user_cache().load(the_entry().name, tmp_path / "other") is not None


def test_a_disk_that_is_full_only_means_no_cache(
    tmp_path: Path, session: ToolSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, destination: Path) -> None:
        Path(destination).write_text("AB")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tool_cache.shutil, "copyfile", _only_in(tmp_path / "cache", full))
        result = compiled(tmp_path, call(tmp_path))
    assert result.answer == {"characters": 3}
    assert files(tmp_path / "run") == MADE
    assert "No space left" in session.not_stored
    assert files(tmp_path / "cache") == {}, "nothing half-written"


def _only_in(folder: Path, function: object) -> object:
    copyfile = shutil.copyfile

    def chosen(source: Path, destination: Path) -> object:
        inside = Path(destination).is_relative_to(folder)
        return function(source, destination) if inside else copyfile(source, destination)  # type: ignore[operator]

    return chosen


def test_a_place_where_no_folder_can_be_made_only_means_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(tool_cache.FOLDER_VARIABLE, str(tmp_path / "file/below"))
    with tool_session(use_cache=True) as session:
        assert compiled(tmp_path, call(tmp_path)).answer == {"characters": 3}
    assert "Not a directory" in session.not_stored


def test_several_at_once_get_whole_files(tmp_path: Path, session: ToolSession) -> None:
    same = call(tmp_path)

    def one(number: int) -> dict[str, str]:
        compiled(tmp_path, same, f"run{number}")
        return files(tmp_path / f"run{number}")

    contexts = [copy_context() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: contexts[number].run(one, number), range(8)))
    assert found == [MADE] * 8
    count = session.counts[Task.COMPILE]
    assert count.made + count.from_cache == 8
    assert user_cache().size()[0] == 1


_STORE = """
import sys
from pathlib import Path
from dovetail.targets.tool_cache import CacheRecord, user_cache
from dovetail.files import file_sha256
source = Path(sys.argv[1])
for _ in range(30):
    for number in range(3):
        key = f"{number}" * 64
        path = source / f"{number}.bin"
        user_cache().store(CacheRecord(key, {}, "", "", {path.name: file_sha256(path)}), source)
        place = Path(sys.argv[2]) / str(number)
        place.mkdir(parents=True, exist_ok=True)
        record = user_cache().load(key, place)
        assert record is None or (place / path.name).read_bytes() == path.read_bytes()
"""


def test_two_processes_at_once_are_safe_while_entries_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.bin").write_bytes(os.urandom(400_000))
    monkeypatch.setenv(tool_cache.LIMIT_VARIABLE, "1")  # room for two of the three
    commands = [[sys.executable, "-c", _STORE, str(source), str(tmp_path / name)] for name in ("a", "b")]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for command in commands]
    assert [process.communicate()[1] for process in running] == [b"", b""]
    entries, size = user_cache().size()
    assert 1 <= entries <= 2
    assert size <= 1_000_000
    assert not list(user_cache().folder.glob("tmp-*"))


def _stored(cache: ToolCache, name: str, size: int, source: Path) -> None:
    path = source / name
    path.write_bytes(os.urandom(size))
    cache.store(CacheRecord(name * 64, {}, "", "", {name: file_sha256(path)}), source)


def test_the_least_recently_used_go_first_and_too_large_ones_are_not_kept(tmp_path: Path) -> None:
    cache = ToolCache(tmp_path / "small", 3000)
    for age, name in enumerate("ab"):
        _stored(cache, name, 1000, tmp_path)
        os.utime(cache.folder / (name * 2) / (name * 64), (age, age))
    (tmp_path / "out").mkdir()
    assert cache.load("a" * 64, tmp_path / "out") is not None, "now b is the oldest"
    _stored(cache, "c", 1000, tmp_path)
    kept = sorted(path.name[0] for path in cache.folder.glob("??/*"))
    assert kept == ["a", "c"]
    _stored(cache, "d", 5000, tmp_path)
    assert sorted(path.name[0] for path in cache.folder.glob("??/*")) == kept


def test_many_small_entries_are_not_all_looked_at_for_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, looked_at = ToolCache(tmp_path / "cache", 1_000_000), list[int]()
    size_of = tool_cache._size_bytes
    monkeypatch.setattr(tool_cache, "_size_bytes", lambda folder: looked_at.append(1) or size_of(folder))
    for number in range(30):
        path = tmp_path / f"{number}"
        path.write_bytes(os.urandom(900))
        cache.store(CacheRecord(f"{number:064}", {}, "", "", {path.name: file_sha256(path)}), tmp_path)
    assert cache.size()[0] == 30
    del looked_at[-30:]
    assert len(looked_at) < 60, "30 stores, of which the first and every eleventh or so look at all entries"
    for number in range(1200):
        path = tmp_path / f"{number}"
        path.write_bytes(os.urandom(900))
        cache.store(CacheRecord(f"{number:064}", {}, "", "", {path.name: file_sha256(path)}), tmp_path)
    assert cache.size()[1] <= 1_010_000 + 2000


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    cache = ToolCache(tmp_path / "cache", 10_000)
    for name, age in (("tmp-old", 0), ("tmp-new", None)):
        (cache.folder / name).mkdir(parents=True)
        if age is not None:
            os.utime(cache.folder / name, (age, age))
    _stored(cache, "a", 10, tmp_path)
    assert sorted(path.name for path in cache.folder.iterdir()) == ["aa", "tmp-new"]
    assert cache.clear()[0] == 1
    assert files(cache.folder) == {}


@pytest.mark.parametrize("text", ["0", "-1", "lots", "1.5"])
def test_a_size_limit_that_is_no_number_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tool_cache.LIMIT_VARIABLE, text)
    with pytest.raises(InputError, match=rf"{tool_cache.LIMIT_VARIABLE}={text}: expected a whole number"):
        user_cache()
