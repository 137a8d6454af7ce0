"""Hashes of files."""

from __future__ import annotations

import hashlib
from pathlib import Path


def file_sha256(*paths: Path) -> str:
    """Return the SHA-256 of a file, or of several concatenated, read in chunks."""
    state = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            hashlib.file_digest(stream, lambda: state)
    return state.hexdigest()
