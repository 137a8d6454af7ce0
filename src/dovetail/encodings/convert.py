"""Write encodings in another version: lossless, or refused with the names of what that version cannot say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from dovetail.encoding import Granularity
from dovetail.encodings import v0_6_1, v1_0_0, v2_0_0
from dovetail.encodings.records import Encodings, TensorEncoding
from dovetail.encodings.shapes import ModelTensor, with_model, without_shape
from dovetail.errors import InputError

VERSIONS: dict[str, ModuleType] = {module.VERSION: module for module in (v0_6_1, v1_0_0, v2_0_0)}
WRITABLE = tuple(VERSIONS)
# How many entries an error message lists.
_LISTED = 8
# Whole-file keys that only files below 2.0.0 have.
_OLD_HEADER = ("excluded_layers", "quantizer_args")


@dataclass(frozen=True, slots=True)
class Written:
    """A converted file: its content, and what was lost: reason -> names of entries (empty if nothing)."""

    content: bytes
    lost: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def convert(
    encodings: Encodings, version: str, tensors: Mapping[str, ModelTensor] | None = None, *, lossy: bool = False
) -> Written:
    """Write encodings in a version; ``tensors`` are those of the model, which some conversions need.

    Without ``lossy``, everything that the version cannot say is an error. With it, an entry that cannot be written is
    left out, and one that only loses a label is written without it; ``lost`` lists both.
    """
    if version not in VERSIONS:
        raise InputError(f"unknown version {version!r} to write; expected one of {', '.join(WRITABLE)}")
    if tensors is None:
        _require_no_model(encodings, version)
    else:
        encodings = with_model(encodings, tensors)
    module = VERSIONS[version]
    parts: dict[bool, dict[str, Any]] = {False: {}, True: {}}
    lost: dict[str, list[str]] = {"not understood": list(encodings.ignored)} if encodings.ignored else {}
    for name, original in encodings.entries.items():
        entry, reason = _prepared(original, module, tensors)
        if reason:
            lost.setdefault(reason, []).append(repr(name))
        if entry is not None:
            parts[bool(entry.is_parameter)][name] = module.written(entry)
    if lost and not lossy:
        raise InputError(f"{version} cannot carry all of it: {_listed(lost)}; add --lossy to leave that out")
    return Written(_content(module, parts, encodings), {reason: tuple(names) for reason, names in lost.items()})


def _listed(lost: Mapping[str, list[str]]) -> str:
    """The reasons, each with the first names."""
    texts = []
    for reason, names in lost.items():
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        texts.append(f"{reason} ({', '.join(names[:_LISTED])}{more})")
    return "; ".join(texts)


def _require_no_model(encodings: Encodings, version: str) -> None:
    """Raise InputError if a conversion depends on the model, which was not given."""
    if version == v2_0_0.VERSION:
        names = [name for name, entry in encodings.entries.items() if entry.needs_shape]
        lacks = f"axis or the block layout of {len(names)} entries"
    else:
        names = [name for name, entry in encodings.entries.items() if entry.is_parameter is None]
        lacks = f"difference between parameters and activations, which {version} has in separate lists"
    if names:
        raise InputError(
            f"a file of version {encodings.version} does not have the {lacks} (the first is {names[0]!r}): "
            "add --model MODEL"
        )


def _prepared(
    entry: TensorEncoding, module: ModuleType, tensors: Mapping[str, ModelTensor] | None
) -> tuple[TensorEncoding | None, str]:
    """(the entry as the version has it, or None if it has no way to say it; what is lost, or an empty text)."""
    if reason := module.why_not(entry):
        return None, reason
    if tensors is not None and entry.name not in tensors and (entry.is_parameter is None or entry.needs_shape):
        return None, "the model has no such tensor"
    if module is v2_0_0:
        return entry, module.lost(entry)
    if entry.granularity is not Granularity.TENSOR and not entry.needs_shape:
        tensor = None if tensors is None else tensors.get(entry.name)
        flat = None if tensor is None else without_shape(entry, tensor)
        if flat is None:
            return None, f"its axis {entry.axis} is not the one that {module.VERSION} implies for this tensor"
        entry = flat
    return entry, module.lost(entry)


def _content(module: ModuleType, parts: dict[bool, dict[str, Any]], encodings: Encodings) -> bytes:
    """The file as JSON, the same bytes for the same encodings."""
    if module is v2_0_0:
        header = {key: value for key, value in encodings.header.items() if key not in _OLD_HEADER}
        entries = [value for part in (True, False) for value in parts[part].values()]
        document = {"encodings": entries, **header}
    else:
        document = module.document(parts[True], parts[False], encodings.header)
    return (json.dumps({**document, "version": module.VERSION}, indent=1, allow_nan=False) + "\n").encode()
