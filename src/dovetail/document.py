"""Our own JSON documents: read with the schema version checked first, so that an old file is named as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import InputError


def read_document(path: Path, what: str, schema_version: int) -> dict[str, Any]:
    """The content of a file that says it is ``what`` in this version of its schema."""
    try:
        raw: Any = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path}: not a {what} ({error})") from error
    if not isinstance(raw, dict) or raw.get("schema_version") != schema_version:
        raise InputError(f"{path}: not a {what} of schema version {schema_version}")
    return raw
