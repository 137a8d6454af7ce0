"""``device/manifest.json``: what a device runs, so that its outputs can be identified and compared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dovetail.backend import DeviceTensor
from dovetail.document import read_document
from dovetail.errors import InputError
from dovetail.stats import DataInfo

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
# File systems allow 255 bytes, some 143: with room for a number and a suffix.
_LONGEST_NAME, _HASH_CHARS = 120, 16


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of ``manifest.json``.

    ``model_sha256``: that of the shipped QDQ graph. ``run``: the file that the script runs. ``models``: model file ->
    SHA-256. ``ranked``: outputs ordered by a TopK -> axis whose order may differ. ``classes``: outputs that are class
    scores. ``float_db``: SQNR limit of the target's float16; None if the plan has no float tensors.
    """

    target: str
    precision: str
    model_sha256: str
    run: str
    models: Mapping[str, str]
    samples: int
    data: DataInfo
    inputs: tuple[DeviceTensor, ...]
    outputs: tuple[DeviceTensor, ...]
    ranked: Mapping[str, int]
    float_db: float | None
    versions: Mapping[str, str]
    classes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> bytes:
        """Return the content of ``manifest.json``."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


def read_manifest(path: Path) -> Manifest:
    """Read a manifest; the error for another schema version or a wrong field names it."""
    raw = read_document(path, "device manifest", SCHEMA_VERSION)
    try:
        return msgspec.convert(raw, Manifest)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from error


def file_name(name: str) -> str:
    """Convert a tensor name to a file name of letters, digits and underscores, as Qualcomm's tools do.

    A long one is shortened, with a hash of all of it; that of a file name that a tool wrote is the same.
    """
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    if len(plain) <= _LONGEST_NAME:
        return plain
    digest = hashlib.sha256(plain.encode()).hexdigest()[:_HASH_CHARS]
    return f"{plain[: _LONGEST_NAME - _HASH_CHARS - 1]}_{digest}"


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Tensor names -> file names, all different, also on file systems that ignore case."""
    files: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = file_name(name) or "_"
        number, unique = 2, plain
        while unique.lower() in taken:
            number, unique = number + 1, f"{plain}_{number}"
        taken.add(unique.lower())
        files[name] = unique
    return files


def sample_folder(number: int) -> str:
    """The folder of one sample's outputs."""
    return f"{number:03d}"
