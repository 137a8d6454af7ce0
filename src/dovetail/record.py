"""Frozen records as JSON, whole: a new field of a record needs no edit here. Paths are kept relative to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def encode(record: object, base: Path) -> bytes:
    """A record as JSON, with paths relative to a folder."""

    def plain(value: Any) -> Any:
        if isinstance(value, Path):
            return value.relative_to(base).as_posix()
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")

    return msgspec.json.encode(record, enc_hook=plain)


def decode(content: bytes, kind: type[T], base: Path) -> T:
    """The record again, with paths in a folder."""

    def typed(wanted: type, value: Any) -> Any:
        if wanted is Path:
            return base / value
        raise TypeError(f"{wanted.__name__} cannot be read from JSON")

    return msgspec.json.decode(content, type=kind, dec_hook=typed)


def moved(record: T, kind: type[T], before: Path, after: Path) -> T:
    """A record whose files went from one folder to another."""
    return decode(encode(record, before), kind, after)
