"""The run directory: every stage's record, written whole or not at all, so that a run can be looked at or resumed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dovetail.errors import InputError

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

    def stage(self, name: str, key: str, make: Callable[[], T], save: Callable[[T], None], load: Callable[[], T]) -> T:
        """A stage's record: loaded when resuming and it was made from the same things, else made and saved."""
        stamp = self.stages / f"{name}.key"
        if self.resume and stamp.exists() and stamp.read_text() == key:
            return load()
        stamp.unlink(missing_ok=True)
        record = make()
        save(record)
        write_whole(stamp, key.encode())
        return record


def open_rundir(path: Path, asked: Mapping[str, Any], *, force: bool, resume: bool) -> RunDir:
    """Make the folder, or take an old run of ours when told to; nothing that is not ours is ever removed."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: is a file, the run directory must be a folder")
    ours = (path / _MARKER).is_file()
    try:
        if path.exists() and any(path.iterdir()):
            if not ours:
                raise InputError(f"{path}: is not empty and not a run directory of ours; it is left alone")
            if not force and not resume:
                raise InputError(f"{path}: exists; say --force to replace it or --resume to continue it")
            if force and not resume:
                shutil.rmtree(path)
        (path / "stages").mkdir(parents=True, exist_ok=True)
        write_whole(path / _MARKER, json.dumps(asked, indent=1, sort_keys=True, default=str).encode())
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    return RunDir(path, resume)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file by a temporary name and a rename."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    os.replace(part, path)


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def chain_key(before: str, **more: Any) -> str:
    """The key of a stage: everything that went into it, so that a change anywhere before makes it new."""
    text = json.dumps({"before": before, **more}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
