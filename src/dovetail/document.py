"""Reading and writing Dovetail's JSON documents; the schema version is checked before anything else.

Records are converted field by field: a new field needs no edit here. Paths are stored relative to a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from dovetail.edge import Edge
from dovetail.errors import InputError

T = TypeVar("T")
# Converts a decoded document of one schema version to the next version.
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]


def encode(record: object, *, indent: int | None = None, base: Path | None = None) -> bytes:
    """Encode a record as JSON: its fields by name, an edge as ``node:index``, paths relative to ``base``."""
    text = msgspec.json.encode(record, enc_hook=_encode_hook(base))
    return text if indent is None else msgspec.json.format(text, indent=indent)


def to_builtins(record: object) -> Any:
    """Convert a record to dicts and lists, to be part of another document."""
    return msgspec.to_builtins(record, enc_hook=_encode_hook(None))


def convert(raw: object, kind: type[T]) -> T:
    """Convert decoded JSON to a record; msgspec's error says which field is wrong."""
    return msgspec.convert(raw, kind, dec_hook=_decode_hook(None))


def decode(text: bytes, kind: type[T], *, base: Path | None = None) -> T:
    """Decode what ``encode`` wrote to a record of one type, with paths inside ``base``."""
    return msgspec.json.decode(text, type=kind, dec_hook=_decode_hook(base))


def with_paths_moved(record: T, kind: type[T], before: Path, after: Path) -> T:
    """Return a record with its paths moved from one folder to another."""
    return decode(encode(record, base=before), kind, base=after)


def read_document(
    path: Path, document: str, schema_version: int, upgrades: Mapping[int, Upgrade] = MappingProxyType({})
) -> dict[str, Any]:
    """Read a JSON document (``document`` names its kind in messages) and upgrade it to this schema version."""
    try:
        raw: Any = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} cannot be read as a {document} ({error})") from error
    while isinstance(raw, dict) and raw.get("schema_version") in upgrades:
        raw = _upgraded(raw, upgrades[raw["schema_version"]], path, document)
    if not isinstance(raw, dict) or raw.get("schema_version") != schema_version:
        version = "it is not a JSON object"
        if isinstance(raw, dict):
            version = f"it has {raw['schema_version']!r}" if "schema_version" in raw else "it has no schema_version"
        raise InputError(f"{path} is not a {document} of schema version {schema_version}: {version}")
    return raw


def _upgraded(raw: dict[str, Any], upgrade: Upgrade, path: Path, document: str) -> dict[str, Any]:
    version = raw["schema_version"]
    try:
        return {**upgrade(raw), "schema_version": version + 1}
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a complete {document} of schema version {version} ({error!r})") from error


def _encode_hook(base: Path | None) -> Callable[[Any], Any]:
    def hook(value: Any) -> Any:
        if isinstance(value, Edge):
            return str(value)
        if isinstance(value, Path) and base is not None:
            return value.relative_to(base).as_posix()
        raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")

    return hook


def _decode_hook(base: Path | None) -> Callable[[type, Any], Any]:
    def hook(kind: type, value: Any) -> Any:
        if kind is Path and base is not None:
            return base / value
        if kind is not Edge:
            raise NotImplementedError(f"{kind.__name__} cannot be read from JSON")
        if not isinstance(value, str):
            raise ValueError(f"expected an edge as text, got {value!r}")
        try:
            return Edge.parse(value)
        except InputError as error:
            raise ValueError(str(error)) from error  # msgspec adds the place in the document

    return hook
