"""Our own JSON documents: one spelling of every record, and the schema version checked before anything else is.

Records are written and read whole: a new field of one needs no edit here. Paths are kept relative to a folder.
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
# From a document of one schema version, as it was decoded, to the next one.
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]


def encode(record: object, *, indent: int | None = None, base: Path | None = None) -> bytes:
    """A record as JSON: its fields by name, an edge as ``node:index``, paths relative to a folder."""
    text = msgspec.json.encode(record, enc_hook=_writer(base))
    return text if indent is None else msgspec.json.format(text, indent=indent)


def builtins(record: object) -> Any:
    """A record as it stands in JSON, for putting it into another document."""
    return msgspec.to_builtins(record, enc_hook=_writer(None))


def convert(raw: object, kind: type[T]) -> T:
    """What was decoded from JSON as a record; msgspec says where it is not one."""
    return msgspec.convert(raw, kind, dec_hook=_reader(None))


def decode(text: bytes, kind: type[T], *, base: Path | None = None) -> T:
    """What ``encode`` wrote: a record of one kind, with paths in a folder."""
    return msgspec.json.decode(text, type=kind, dec_hook=_reader(base))


def moved(record: T, kind: type[T], before: Path, after: Path) -> T:
    """A record whose files went from one folder to another."""
    return decode(encode(record, base=before), kind, base=after)


def read_document(
    path: Path, what: str, schema_version: int, upgrades: Mapping[int, Upgrade] = MappingProxyType({})
) -> dict[str, Any]:
    """The content of a file that says it is ``what``, in this version of its schema or brought to it from an older."""
    try:
        raw: Any = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path}: not a {what} ({error})") from error
    while isinstance(raw, dict) and raw.get("schema_version") in upgrades:
        raw = _upgraded(raw, upgrades[raw["schema_version"]], path, what)
    if not isinstance(raw, dict) or raw.get("schema_version") != schema_version:
        raise InputError(f"{path}: not a {what} of schema version {schema_version}")
    return raw


def _upgraded(raw: dict[str, Any], upgrade: Upgrade, path: Path, what: str) -> dict[str, Any]:
    version = raw["schema_version"]
    try:
        return {**upgrade(raw), "schema_version": version + 1}
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a whole {what} of schema version {version} ({error!r})") from error


def _writer(base: Path | None) -> Callable[[Any], Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, Edge):
            return str(value)
        if isinstance(value, Path) and base is not None:
            return value.relative_to(base).as_posix()
        raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")

    return plain


def _reader(base: Path | None) -> Callable[[type, Any], Any]:
    def special(kind: type, value: Any) -> Any:
        if kind is Path and base is not None:
            return base / value
        if kind is not Edge:
            raise NotImplementedError(f"{kind.__name__} cannot be read from JSON")
        if not isinstance(value, str):
            raise ValueError(f"expected an edge as text, got {value!r}")
        try:
            return Edge.parse(value)
        except InputError as error:
            raise ValueError(str(error)) from error  # which msgspec adds the place in the document to

    return special
