"""``run.json``: the command, date and options of a run, and what must be the same when it is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dovetail.document import encode
from dovetail.errors import InputError

RECORD = "run.json"
SCHEMA_VERSION = 1
_SHOWN_CHARS = 40
# The kind of a run of ``dovetail sensitivity``.
SENSITIVITY_KIND = "sensitivity"


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """What started a run: ``kind`` is fit, repair, demo or sensitivity; ``command`` as typed, or a function's name."""

    kind: str
    command: str


@dataclass(frozen=True, slots=True)
class Resumption:
    """One command that continued a run."""

    command: str
    date: str


def _now() -> str:
    return datetime.now(UTC).astimezone().isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The content of ``run.json``.

    ``options``: all of them, as last set. ``compared``: what a resumed run must have in common with this one, by name.
    """

    kind: str
    command: str
    model: str
    options: Mapping[str, Any]
    compared: Mapping[str, str]
    date: str = field(default_factory=_now)
    resumed: tuple[Resumption, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> bytes:
        """Return the content of ``run.json``."""
        return encode(self, indent=1)


def read_record(run: Path) -> RunRecord | None:
    """Read the record of a run directory; None if there is none, or one of an older version."""
    try:
        return msgspec.json.decode((run / RECORD).read_bytes(), type=RunRecord)
    except (OSError, msgspec.DecodeError):
        return None


def resumed(path: Path, earlier: RunRecord | None, record: RunRecord) -> RunRecord:
    """Return the record of a run that is continued; one that was started with something else is refused."""
    if earlier is None:
        raise InputError(
            f"{path}: {RECORD} does not say how the run was started, so it cannot be resumed; use --force to replace it"
        )
    before, now = ({**each.compared, **_command(each)} for each in (earlier, record))
    names = dict.fromkeys((*before, *now))
    differ = [name for name in names if before.get(name) != now.get(name)]
    if differ:
        changes = [f"{name} (was {_shown(before.get(name))}, now {_shown(now.get(name))})" for name in differ]
        raise InputError(
            f"{path} cannot be resumed, because the run was started with another {', '.join(changes)}; set what it was "
            "started with, or use --force instead of --resume to start again"
        )
    start = Resumption(record.command, record.date)
    return replace(
        record, kind=earlier.kind, command=earlier.command, date=earlier.date, resumed=(*earlier.resumed, start)
    )


def _command(record: RunRecord) -> dict[str, str]:
    """The command of a run that has another result than all others, which continue each other."""
    return {"command": record.kind} if record.kind == SENSITIVITY_KIND else {}


def _shown(value: str | None) -> str:
    text = value or "not set"
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."
