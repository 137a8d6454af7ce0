"""Figures that were measured before, in files: an interrupted search continues without measuring them again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from dovetail.model.write import write_whole


class KeptFigures:
    """Figures by name, a file for those that were measured together; without a folder nothing is kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def of(self, key: Sequence[object], make: Callable[[], dict[str, float]]) -> dict[str, float]:
        """The figures with this key, measured unless they are known. A file that cannot be read is replaced."""
        if self._folder is None:
            return make()
        text = json.dumps([str(part) for part in key])
        file = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
        try:
            return {name: float(figure) for name, figure in json.loads(file.read_bytes()).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            figures = make()
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(figures).encode())
        return figures
