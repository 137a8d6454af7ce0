"""Values that were measured before, in files: an interrupted search continues without measuring them again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from dovetail.model.write import write_whole

_KEY, _FIGURES = "key", "figures"


class CachedMeasurements:
    """Values by name, a file for those that were measured together; without a folder nothing is cached."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def of(
        self, key: Sequence[object], make: Callable[[], dict[str, float]], names: Collection[str] = ()
    ) -> dict[str, float]:
        """The values with this key, measured unless they are cached. A file that does not have all of them is replaced.

        ``names``: the names of the values, if they are known before.
        """
        if self._folder is None:
            return make()
        parts = [str(part) for part in key]
        file = self._folder / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]}.json"
        known = _read(file, parts)
        if known and (not names or known.keys() == set(names)):
            return known
        figures = make()
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({_KEY: parts, _FIGURES: figures}).encode())
        return figures


def _read(file: Path, key: list[str]) -> dict[str, float]:
    """The figures of a file; empty if there is no such file, or if it is not one of ours with this key."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict) or content.keys() != {_KEY, _FIGURES} or content[_KEY] != key:
        return {}
    figures = content[_FIGURES]
    is_valid = isinstance(figures, dict) and all(type(figure) in (int, float) for figure in figures.values())
    return {name: float(figure) for name, figure in figures.items()} if is_valid else {}
