"""The files of a sweep: its settings, one line per graph, and one line per shrunk failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from dovetail.document import decode, encode
from dovetail.errors import InputError
from dovetail.model.write import write_whole
from dovetail.sweep.outcome import Failure, Outcome

T = TypeVar("T")
_SETTINGS, _GRAPHS, _PATTERNS = "sweep.json", "graphs.jsonl", "patterns.jsonl"


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """What decides the outcomes of a sweep; a folder is only continued with the same settings.

    ``generator``: a digest of generated graphs, set by the sweep. If the generator has changed, a seed stands for other
    graphs, and a folder cannot be continued; its patterns can still be fitted again.
    """

    target: str
    precision: str
    seed: int
    option: Mapping[str, str] = field(default_factory=dict)
    build_only: bool = False
    generator: str = ""


@dataclass(frozen=True, slots=True)
class GraphRow:
    """One graph: its index, the kinds of its blocks, the number of its nodes, and what came of it."""

    index: int
    kinds: tuple[str, ...]
    nodes: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class PatternRow:
    """One failure of one graph, shrunk.

    ``failure``: as it is in the shrunk graph. ``pattern``: its operators. ``facts``: sizes by name. ``file``: the
    shrunk model, in the folder of the sweep. ``is_shrunk``: the first build of the whole graph fails in the same way;
    if not, the pattern is that of the whole graph.
    """

    index: int
    failure: Failure
    pattern: str
    facts: Mapping[str, str]
    file: str
    calls: int
    is_minimal: bool
    is_shrunk: bool = True


class SweepFolder:
    """The folder of one sweep; ``settings``: those that it was started with."""

    def __init__(self, path: Path, settings: SweepSettings) -> None:
        self.path = path
        self.settings = _read_or_write_settings(path, settings)
        for name in ("target", "precision", "seed", "option", "build_only"):
            earlier, now = getattr(self.settings, name), getattr(settings, name)
            if earlier != now:
                raise InputError(
                    f"{path} has a sweep with another {name} ({earlier!r}, not {now!r}); choose another folder"
                )

    def graphs(self) -> dict[int, GraphRow]:
        """The rows by index."""
        rows = {row.index: row for row in _read(self.path / _GRAPHS, GraphRow)}
        return dict(sorted(rows.items()))

    def patterns(self) -> list[PatternRow]:
        """The shrunk failures, in the order in which they were found."""
        return _read(self.path / _PATTERNS, PatternRow)

    def add_graph(self, row: GraphRow) -> None:
        """Append a row."""
        _append(self.path / _GRAPHS, row)

    def add_pattern(self, row: PatternRow) -> None:
        """Append a row."""
        _append(self.path / _PATTERNS, row)


def _read_or_write_settings(folder: Path, settings: SweepSettings) -> SweepSettings:
    """The settings of an earlier run in the folder; in a new one, those of this run, which are written."""
    file = folder / _SETTINGS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            write_whole(file, encode(settings, indent=1))
        return decode(file.read_bytes(), SweepSettings)
    except OSError as error:
        raise InputError(f"{folder} cannot be used as the folder of a sweep ({error.strerror})") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{file} does not have the settings of a sweep ({error}); choose another folder") from error


def _append(path: Path, row: object) -> None:
    """Add a line; one that an interruption left unfinished is ended first."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(encode(row) + b"\n")


def _read(path: Path, kind: type[T]) -> list[T]:
    """The complete lines of a file."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):
        try:
            rows.append(decode(line, kind))
        except msgspec.DecodeError:  # an empty line, or one that an interruption left unfinished
            continue
    return rows
