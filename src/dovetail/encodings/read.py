"""Read an encodings file of any supported version."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.encodings import v0_6_1, v1_0_0, v2_0_0
from dovetail.encodings.records import Encodings, TensorEncoding
from dovetail.encodings.values import bad, shown
from dovetail.errors import InputError
from dovetail.garbage import without_garbage_collection
from dovetail.printable import shortened

READABLE = (v0_6_1.VERSION, v1_0_0.VERSION, v2_0_0.VERSION, v2_0_0.READ_ONLY)
ACTIVATIONS, PARAMETERS, ENTRIES = "activation_encodings", "param_encodings", "encodings"
# Keys that say how a file was made: kept where the written version has them.
HEADER_KEYS = ("excluded_layers", "producer", "quantizer_args")


def read_encodings(path: str | Path) -> Encodings:
    """Read a file; an error is one sentence that names the file and the entry."""
    path = Path(path)
    try:
        return parse_encodings(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def parse_encodings(content: bytes) -> Encodings:
    """Parse the content of a file."""
    with without_garbage_collection():  # a third of the time, for a million values of JSON
        return _parse(content)


def _parse(content: bytes) -> Encodings:
    document = _json(content)
    if not isinstance(document, dict):
        raise InputError(f"not an encodings file: it is {shown(document)}, expected a JSON object")
    version = document.get("version")
    if version not in READABLE:
        missing = "it has no version" if version is None else f"version {shown(version)} is unknown"
        raise InputError(f"not an encodings file that can be read: {missing}; expected one of {', '.join(READABLE)}")
    sections = (ENTRIES,) if version in (v2_0_0.VERSION, v2_0_0.READ_ONLY) else (ACTIVATIONS, PARAMETERS)
    for key in sections:
        if key not in document:
            raise InputError(f"an encodings file of version {version} must have {key!r}, which is missing")
    entries: dict[str, TensorEncoding] = {}
    ignored = [f"{key!r} of the file" for key in document if key not in (*sections, *HEADER_KEYS, "version")]
    for entry, unknown in _entries(document, version):
        if entry.name in entries:
            raise bad(entry.name, "there are two entries of this name")
        entries[entry.name] = entry
        ignored += [f"{key!r} of entry {entry.name!r}" for key in sorted(unknown)]
    header = {key: document[key] for key in HEADER_KEYS if key in document}
    return Encodings(version, entries, header, tuple(ignored))


def _entries(document: Mapping[str, Any], version: str) -> Iterator[tuple[TensorEncoding, set[str]]]:
    if version in (v2_0_0.VERSION, v2_0_0.READ_ONLY):
        yield from v2_0_0.read_entries(document[ENTRIES], ENTRIES, version)
        return
    read_entries = v0_6_1.read_entries if version == v0_6_1.VERSION else v1_0_0.read_entries
    yield from read_entries(document[ACTIVATIONS], ACTIVATIONS, False)
    yield from read_entries(document[PARAMETERS], PARAMETERS, True)


def _json(content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_object, parse_constant=_not_finite)
    except UnicodeDecodeError as error:
        raise InputError("not an encodings file: it is not text in UTF-8") from error
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise InputError("not an encodings file: its JSON is nested too deeply") from error
    except ValueError as error:  # an integer of thousands of digits
        raise InputError("not an encodings file: a number in it has too many digits") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a key that is there twice would otherwise silently replace the first one."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise InputError(f"entry {shortened(twice, 200)!r}: there are two entries of this name")
    return values


def _not_finite(text: str) -> float:
    """NaN and infinities are read, so that the error can name the entry that has one."""
    return float(text.replace("Infinity", "inf"))
