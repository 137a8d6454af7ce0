"""Our own JSON documents: read with the schema version checked first; an earlier one is brought up to date."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from dovetail.errors import InputError

Document = dict[str, Any]
# Schema version -> what makes the next version of such a document.
Upgrades = Mapping[int, Callable[[Document], Document]]


def read_document(path: Path, what: str, schema_version: int, upgrades: Upgrades = MappingProxyType({})) -> Document:
    """The content of a file that says it is ``what``, in this version of its schema."""
    try:
        raw: Any = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path}: not a {what} ({error})") from error
    version: Any = raw.get("schema_version") if isinstance(raw, dict) else None
    while version in upgrades:
        try:
            raw = upgrades[version](raw)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: not a {what} of schema version {version} ({error!r})") from error
        version += 1
    if version != schema_version:
        raise InputError(f"{path}: not a {what} of schema version {schema_version}")
    return {**raw, "schema_version": version}
