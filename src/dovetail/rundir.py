"""The run directory: every stage's record, written completely or not at all, so that a run can be resumed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dovetail.errors import BackendError, InputError
from dovetail.files import file_sha256
from dovetail.model.write import write_whole

_MARKER = "run.json"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run directory: ``run.json`` holds the model's name and the options, ``stages/`` the files of each stage."""

    path: Path
    resume: bool

    @property
    def stages(self) -> Path:
        return self.path / "stages"

    def stage(
        self,
        name: str,
        key: str,
        make: Callable[[], T],
        save: Callable[[T], tuple[Path, ...]],
        load: Callable[[], T],
        final: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """Return a stage's record: loaded when resuming, if the key is the same and its files are unchanged.

        Otherwise it is made and saved; ``save`` returns the files that ``load`` needs. A record that is not ``final``
        is made again next time.
        """
        stamp = self.stages / f"{name}.key"
        if self.resume and self._is_unchanged(stamp, key):
            return load()
        stamp.unlink(missing_ok=True)
        record = make()
        files = {str(file.relative_to(self.path)): file_sha256(file) for file in save(record)}
        if final(record):
            write_whole(stamp, json.dumps({"key": key, "files": files}, indent=1).encode())
        return record

    def _is_unchanged(self, stamp: Path, key: str) -> bool:
        """Whether a stage was made with this key, and none of its files has changed since."""
        try:
            stored = json.loads(stamp.read_bytes())
            return bool(stored["key"] == key) and all(
                file_sha256(self.path / name) == digest for name, digest in stored["files"].items()
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False


@contextmanager
def open_rundir(path: Path, request: Mapping[str, Any], *, force: bool, resume: bool) -> Iterator[RunDir]:
    """Open a new run directory, or an existing one to replace or resume; other files are never removed.

    An error restores everything as it was before. An earlier run that was to be replaced is restored whatever ended the
    new one; without such a run, an interrupted one can be resumed.
    """
    old = _check_place(path, force=force, resume=resume)
    place = path.resolve()
    aside: Path | None = None
    top = next((p for p in (*reversed(place.parents), place) if not p.exists()), None)
    try:
        try:
            if old and not resume:
                aside = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
                place.rename(aside / "before")
            (place / "stages").mkdir(parents=True, exist_ok=True)
            if not old or not resume:
                _mark(place, request)
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror})") from error
        yield RunDir(place, resume)
        _mark(place, request)
    except BaseException as error:
        if aside is not None:
            _restore(place, aside)
        elif isinstance(error, InputError | BackendError):
            _undo(place, top, old=old)
        raise
    if aside is not None:
        shutil.rmtree(aside)


def _restore(place: Path, aside: Path) -> None:
    """Put an earlier run back in place, with renames only: they need no space and cannot stop half way."""
    before = aside / "before"
    try:
        if before.exists():
            if place.exists():
                place.rename(aside / "unfinished")
            before.rename(place)
    except OSError as error:
        raise InputError(f"{place}: the earlier run could not be restored; it is in {before} ({error})") from error
    shutil.rmtree(aside, ignore_errors=True)


def _undo(place: Path, top: Path | None, *, old: bool) -> None:
    """Remove what a failed run has created: the first new folder with its content, or the content of an empty one."""
    if top is not None:
        shutil.rmtree(top, ignore_errors=True)
    elif not old:
        _empty(place)


def _check_place(path: Path, *, force: bool, resume: bool) -> bool:
    """Whether there is an earlier run; a file or a folder with other content is refused."""
    try:
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file; the run directory must be a folder")
        if not path.exists() or not any(path.iterdir()):
            return False
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    if not (path / _MARKER).is_file():
        raise InputError(f"{path} is not empty and not a Dovetail run directory; choose another --output")
    if not force and not resume:
        raise InputError(f"{path} already contains a run; add --force to replace it or --resume to continue it")
    return True


def _mark(path: Path, request: Mapping[str, Any]) -> None:
    write_whole(path / _MARKER, json.dumps(request, indent=1, sort_keys=True, default=str).encode())


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
