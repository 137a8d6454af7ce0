"""The run directory: every stage's record, written whole or not at all, so that a run can be looked at or resumed."""

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
    """A folder of ours: the marker says what was asked, ``stages/`` holds what each stage left."""

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
        """A stage's record: loaded when resuming, if it was made from the same things and its files are untouched.

        Otherwise it is made and saved; ``save`` gives the files that ``load`` will need. A record that is not ``final``
        is made again next time.
        """
        stamp = self.stages / f"{name}.key"
        if self.resume and self._is_whole(stamp, key):
            return load()
        stamp.unlink(missing_ok=True)
        record = make()
        files = {str(file.relative_to(self.path)): file_sha256(file) for file in save(record)}
        if final(record):
            write_whole(stamp, json.dumps({"key": key, "files": files}, indent=1).encode())
        return record

    def _is_whole(self, stamp: Path, key: str) -> bool:
        """Whether a stage was made from what the key says, and every file that it left is still as it was."""
        try:
            said = json.loads(stamp.read_bytes())
            return bool(said["key"] == key) and all(
                file_sha256(self.path / name) == digest for name, digest in said["files"].items()
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False


@contextmanager
def open_rundir(path: Path, asked: Mapping[str, Any], *, force: bool, resume: bool) -> Iterator[RunDir]:
    """A folder to run in, new or an old one of ours when told to; nothing that is not ours is ever removed.

    A refusal puts everything back as it was before. An earlier run that was to be replaced comes back whatever ended
    the new one; without such a run, what an interruption leaves can be resumed.
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
                _mark(place, asked)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from error
        yield RunDir(place, resume)
        _mark(place, asked)
    except BaseException as error:
        if aside is not None:
            _restore(place, aside)
        elif isinstance(error, InputError | BackendError):
            _undo(place, top, old=old)
        raise
    if aside is not None:
        shutil.rmtree(aside)


def _restore(place: Path, aside: Path) -> None:
    """Put an earlier run back where it was; only renames, which need no space and are done or not."""
    before = aside / "before"
    try:
        if before.exists():
            if place.exists():
                place.rename(aside / "unfinished")
            before.rename(place)
    except OSError as error:
        raise InputError(f"{place}: the earlier run could not be put back and is in {before} ({error})") from error
    shutil.rmtree(aside, ignore_errors=True)


def _undo(place: Path, top: Path | None, *, old: bool) -> None:
    """Remove what a refused run has made: from the first new folder on, or inside of an empty one."""
    if top is not None:
        shutil.rmtree(top, ignore_errors=True)
    elif not old:
        _empty(place)


def _check_place(path: Path, *, force: bool, resume: bool) -> bool:
    """Whether an earlier run of ours is there; anything else that is there is refused."""
    try:
        if path.exists() and not path.is_dir():
            raise InputError(f"{path}: is a file, the run directory must be a folder")
        if not path.exists() or not any(path.iterdir()):
            return False
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if not (path / _MARKER).is_file():
        raise InputError(f"{path}: is not empty and not a run directory of ours; it is left alone")
    if not force and not resume:
        raise InputError(f"{path}: exists; say --force to replace it or --resume to continue it")
    return True


def _mark(path: Path, asked: Mapping[str, Any]) -> None:
    write_whole(path / _MARKER, json.dumps(asked, indent=1, sort_keys=True, default=str).encode())


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
