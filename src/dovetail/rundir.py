"""The run directory: every stage's record, written completely or not at all, so that a run can be resumed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from dovetail.errors import BackendError, InputError
from dovetail.files import file_sha256
from dovetail.model.write import write_whole
from dovetail.run_lock import is_lock, run_lock
from dovetail.run_record import RECORD, RunRecord, read_record, resumed

RESULT = "result.json"
# The page about the result.
PAGE = "report.html"
# The result of ``dovetail sensitivity``, in its own run directory.
SENSITIVITY = "sensitivity.json"
# The details of an error that nobody expected; the command line writes it.
ERROR_DETAILS = "error.txt"
_STAMP = ".key"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run directory: ``run.json`` tells how the run was started, ``stages/`` holds the files of each stage.

    ``made``: the stages that were made and not loaded.
    """

    path: Path
    resume: bool
    made: set[str] = field(default_factory=set)
    _reached: set[str] = field(default_factory=set)

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

        Otherwise it is made and saved; ``save`` returns the files that ``load`` needs. What it wrote before is deleted
        first. A record that is not ``final`` is made again next time.
        """
        stamp = self.stages / f"{name}{_STAMP}"
        self._reached.add(name)
        if self.resume and self._is_unchanged(stamp, key):
            return load()
        self.made.add(name)
        self._discard(stamp)
        record = make()
        files = {str(file.relative_to(self.path)): file_sha256(file) for file in save(record)}
        if final(record):
            write_whole(stamp, json.dumps({"key": key, "files": files}, indent=1).encode())
        return record

    def discard_unreached(self) -> None:
        """Delete what stages wrote in an earlier run that this one did not reach, because it stopped before them."""
        for stamp in sorted(self.stages.glob(f"*{_STAMP}")):
            if stamp.name.removesuffix(_STAMP) not in self._reached:
                self._discard(stamp)

    def _discard(self, stamp: Path) -> None:
        """Delete the files of a stage, and then its stamp."""
        for name in _stamped_files(stamp):
            file = (self.path / name).resolve()
            if file.is_relative_to(self.path) and not file.is_dir():
                file.unlink(missing_ok=True)
        stamp.unlink(missing_ok=True)

    def _is_unchanged(self, stamp: Path, key: str) -> bool:
        """Whether a stage was made with this key, and none of its files has changed since."""
        try:
            stored = json.loads(stamp.read_bytes())
            return bool(stored["key"] == key) and all(
                file_sha256(self.path / name) == digest for name, digest in stored["files"].items()
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False


def _stamped_files(stamp: Path) -> tuple[str, ...]:
    """The files that a stage wrote, as far as its stamp can be read."""
    try:
        return tuple(map(str, json.loads(stamp.read_bytes())["files"]))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


@contextmanager
def open_rundir(path: Path, record: RunRecord, *, force: bool, resume: bool) -> Iterator[RunDir]:
    """Open a new run directory, or an existing one to replace or resume; other files are never removed.

    An error restores everything as it was before. An earlier run that was to be replaced is restored whatever ended the
    new one; without such a run, an interrupted one can be resumed.
    """
    if force and resume:
        raise InputError("--force replaces a run and --resume continues it; use only one of them")
    place = path.resolve()
    new_parents = [parent for parent in place.parents if not parent.exists()]
    try:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror})") from error
        with run_lock(place), _opened(path, place, record, force=force, resume=resume) as run:
            yield run
    except BaseException:
        _remove_empty(new_parents)
        raise


@contextmanager
def _opened(path: Path, place: Path, record: RunRecord, *, force: bool, resume: bool) -> Iterator[RunDir]:
    """Open a run directory whose lock is held."""
    old = _check_place(path, force=force, resume=resume)
    if resume:
        record = resumed(path, read_record(place), record)
    existed = place.exists()
    run = RunDir(place, resume)
    before = {
        name: (place / name).read_bytes() for name in (RECORD, RESULT, PAGE, SENSITIVITY) if (place / name).is_file()
    }
    aside: Path | None = None
    try:
        try:
            if old and not resume:
                aside = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
                place.rename(aside / "before")
            (place / "stages").mkdir(parents=True, exist_ok=True)
            write_whole(place / RECORD, record.to_json())
            for stale in (RESULT, PAGE, SENSITIVITY, ERROR_DETAILS):
                (place / stale).unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror})") from error
        yield run
    except BaseException as error:
        if aside is not None:
            _restore(place, aside)
        elif isinstance(error, InputError | BackendError) and not old:
            _undo(place, existed=existed)
        elif isinstance(error, InputError | BackendError) and not run.made:
            for name, content in before.items():
                write_whole(place / name, content)
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


def _undo(place: Path, *, existed: bool) -> None:
    """Remove what a failed run has created: its folder, or the content of one that was empty before."""
    if not existed:
        shutil.rmtree(place, ignore_errors=True)
        return
    for entry in place.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif not is_lock(entry):
            entry.unlink()


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders that were made for a run, innermost first, unless something else is in them by now."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:  # not empty, or never made
            return


def _check_place(path: Path, *, force: bool, resume: bool) -> bool:
    """Whether there is an earlier run; a file or a folder with other content is refused."""
    try:
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file; the run directory must be a folder")
        if resume and not path.exists():
            raise InputError(f"{path} does not exist, so there is no run to resume; remove --resume")
        if not path.exists() or all(is_lock(entry) for entry in path.iterdir()):
            if resume:
                raise InputError(f"{path} is empty, so there is no run to resume; remove --resume")
            return False
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    if not (path / RECORD).is_file():
        raise InputError(f"{path} is not empty and not a Dovetail run directory; choose another --output")
    if not force and not resume:
        raise InputError(f"{path} already contains a run; add --force to replace it or --resume to continue it")
    return True
