"""Files by their content."""

from __future__ import annotations

import hashlib
from pathlib import Path


def file_sha256(*paths: Path) -> str:
    """The SHA-256 of a file, or of several one behind the other, read in pieces."""
    state = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            hashlib.file_digest(stream, lambda: state)
    return state.hexdigest()
