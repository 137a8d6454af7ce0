"""A lock per run directory: two processes never write to the same one at once.

The lock is held by an open file, so that it ends with its process, however that ends.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dovetail.errors import InputError

# What a file system without locks answers; nothing can be done about two runs there.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
# The byte that is locked on Windows, after the text of the file, which others may read.
_LOCKED_BYTE = 1 << 30
_INSIDE = ".lock"


@contextmanager
def run_lock(place: Path) -> Iterator[None]:
    """Hold the lock of a run directory during the block; its parent folder must exist.

    The file is next to the run directory, because a replaced run is moved; inside it if its parent cannot be written.
    """
    path = lock_file(place)
    try:
        stream = _locked(path, place)
    except OSError as error:
        raise InputError(f"{place} cannot be written ({error.strerror})") from error
    try:
        yield
    finally:
        _release(path, stream)


def lock_file(place: Path) -> Path:
    """The file that is locked for a run directory."""
    beside = os.access(place.parent, os.W_OK) or not place.is_dir()
    return place.with_name(f".{place.name}{_INSIDE}") if beside else place / _INSIDE


def is_lock(path: Path) -> bool:
    """Whether a file inside a run directory is its lock."""
    return path.name == _INSIDE


def _locked(path: Path, place: Path) -> BinaryIO:
    """Open and lock a file, which may be removed meanwhile by the process that had locked it."""
    while True:
        stream = path.open("a+b")
        try:
            _lock(stream)
            if _is_at(path, stream):
                stream.truncate(0)
                stream.write(str(os.getpid()).encode())
                stream.flush()
                return stream
        except BlockingIOError as error:
            stream.seek(0)
            process = stream.read(20).decode(errors="replace")
            stream.close()
            raise InputError(
                f"{place}: another run is writing to this folder (process {process}); wait until it ends, or "
                "choose another --output"
            ) from error
        except BaseException:
            stream.close()
            raise
        stream.close()


def _is_at(path: Path, stream: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except FileNotFoundError:
        return False


def _lock(stream: BinaryIO) -> None:
    """Lock an open file; BlockingIOError if another process has locked it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            stream.seek(_LOCKED_BYTE)
            try:
                msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
            except PermissionError as error:
                raise BlockingIOError(*error.args) from error
        else:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _release(path: Path, stream: BinaryIO) -> None:
    """Remove the file while it is locked, so that nobody locks one that is about to be removed."""
    if sys.platform == "win32":  # an open file cannot be removed there
        stream.close()
        return
    if _is_at(path, stream):
        path.unlink()
    stream.close()
