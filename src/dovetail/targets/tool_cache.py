"""The cache: what vendor compilers, emulators and runtimes gave before, by the hash of everything that decides it.

An entry is one folder, ``ab/abcdef.../``, with ``record.gz`` (answer, error, log, file hashes) and ``files/``. It is
written under a temporary name and renamed, so that another process sees all of it or nothing. An entry that is not
exactly what its record says is removed and counts as missing. Where the disk does not take an entry, there is none.
"""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from dovetail.errors import InputError
from dovetail.files import file_sha256
from dovetail.whole_number import whole_number

FOLDER_VARIABLE, LIMIT_VARIABLE = "DOVETAIL_CACHE_DIR", "DOVETAIL_CACHE_LIMIT_MB"
DEFAULT_LIMIT_MB = 5000
_RECORD, _FILES, _TEMPORARY = "record.gz", "files", "tmp-"
# A temporary folder that is older than this was left by a process that was killed.
_ABANDONED_S = 24 * 3600.0
# Looking at every entry takes longer than some entries take to make, so it is done once for this part of the limit.
_TRIM_AFTER = 0.01
# What this process has stored since it last looked at every entry, by cache folder.
_STORED_BYTES: dict[Path, int] = {}
# What reading an entry raises that is not there, or is not what ``store`` writes.
_DAMAGED = (
    FileNotFoundError,
    NotADirectoryError,
    IsADirectoryError,
    gzip.BadGzipFile,
    EOFError,
    zlib.error,
    msgspec.DecodeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class CacheRecord:
    """What one call came to: its answer or error, its log, and the SHA-256 of every file, by relative path."""

    key: str
    answer: Mapping[str, Any] | None
    error: str
    log: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ToolCache:
    """Entries below one folder, at most about ``limit_bytes`` of them: the least recently used go first."""

    folder: Path
    limit_bytes: int

    def load(self, key: str, destination: Path) -> CacheRecord | None:
        """The record of an entry, its files copied into ``destination``; None, and nothing copied, without one."""
        entry = self._entry(key)
        with tempfile.TemporaryDirectory(dir=destination) as name:
            copies = Path(name) / _FILES
            copies.mkdir()
            try:
                record = msgspec.json.decode(gzip.decompress((entry / _RECORD).read_bytes()), type=CacheRecord)
                whole = record.key == key and _copy_files(entry / _FILES, record.files, copies)
            except _DAMAGED:
                whole = False
            except OSError:  # about the destination or this machine: the entry may be good
                return None
            if not whole:
                _remove(entry)
                return None
            for path in copies.iterdir():
                path.rename(destination / path.name)
        _touch(entry)
        return record

    def store(self, record: CacheRecord, source: Path) -> None:
        """Keep a record with its files, which are in ``source``; raises OSError where the disk does not take it."""
        packed = gzip.compress(msgspec.json.encode(record), compresslevel=1)
        size_bytes = len(packed) + sum((source / name).stat().st_size for name in record.files)
        if size_bytes > self.limit_bytes:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.folder))
        try:
            _copy_files(source, record.files, temporary / _FILES)
            (temporary / _RECORD).write_bytes(packed)
            entry = self._entry(record.key)
            if entry.parent.exists() and not entry.parent.is_dir():
                entry.parent.unlink()
            entry.parent.mkdir(exist_ok=True)
            try:
                temporary.rename(entry)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise  # otherwise another process was faster, and its entry is the same
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._trim_if_due(size_bytes)

    def size(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        sizes = [_size_bytes(entry) for entry in self._entries()]
        return len(sizes), sum(sizes)

    def clear(self) -> tuple[int, int]:
        """Remove every entry, and what killed processes left; how many entries and bytes that were."""
        before = self.size()
        for path in self.folder.glob("??/*"):
            _remove(path)
        self._remove_abandoned(older_s=0.0)
        if left := list(self.folder.glob("??/*")):
            raise OSError(f"{left[0]} could not be removed")
        return before

    def _entry(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def _entries(self) -> Iterator[Path]:
        return (path for path in self.folder.glob("??/*") if path.is_dir())

    def _trim_if_due(self, stored_bytes: int) -> None:
        """Trim after the first entry that this process stores, and whenever it has stored a part of the limit since."""
        stored = _STORED_BYTES.get(self.folder, self.limit_bytes) + stored_bytes
        if stored > self.limit_bytes * _TRIM_AFTER:
            self._trim()
            stored = 0
        _STORED_BYTES[self.folder] = stored

    def _trim(self) -> None:
        """Remove the least recently used entries until the rest fits, and what killed processes left."""
        self._remove_abandoned(older_s=_ABANDONED_S)
        entries = sorted((_used_at(path), _size_bytes(path), path) for path in self._entries())
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self.limit_bytes:
                return
            _remove(path)
            total -= size

    def _remove_abandoned(self, older_s: float) -> None:
        """Remove temporary folders of this age; a process that still uses one then keeps nothing, which is harmless."""
        now = time.time()
        for path in self.folder.glob(f"{_TEMPORARY}*"):
            if now - _used_at(path) > older_s:
                _delete(path)


def user_cache() -> ToolCache:
    """The cache of this user: the folder and the size limit follow the environment, or the platform's convention."""
    folder = os.environ.get(FOLDER_VARIABLE) or platformdirs.user_cache_dir("dovetail", appauthor=False)
    text = os.environ.get(LIMIT_VARIABLE)
    limit_mb = whole_number(text) if text else DEFAULT_LIMIT_MB
    if limit_mb is None:
        raise InputError(f"{LIMIT_VARIABLE}={text}: expected a whole number of megabytes above 0")
    return ToolCache(Path(folder).absolute() / "compile", limit_mb * 1_000_000)


def _copy_files(source: Path, sha256: Mapping[str, str], destination: Path) -> bool:
    """Copy files by relative path into a new folder; whether every copy has the hash that is expected."""
    for name, expected in sha256.items():
        copy = destination / name
        if not copy.resolve().is_relative_to(destination.resolve()):
            return False
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, copy)
        if file_sha256(copy) != expected:
            return False
    return True


def _remove(entry: Path) -> None:
    """Take an entry away at once, under another name, so that nobody sees half of it."""
    trash = entry.parent.parent / f"{_TEMPORARY}{entry.name}-{os.getpid()}"
    try:
        entry.rename(trash)
    except OSError:  # it is not there, or another process was faster
        return
    _delete(trash)


def _delete(path: Path) -> None:
    """Delete a folder, or whatever else is there; another process may be faster."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _touch(entry: Path) -> None:
    try:
        os.utime(entry)
    except OSError:  # a read-only cache still serves; it only cannot tell what was used last
        return


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # removed by another process
        return 0.0


def _size_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # passes over what another process removes meanwhile
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total
