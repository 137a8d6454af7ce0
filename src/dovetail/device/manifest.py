"""``device/manifest.json``: what a device is given to run, so that what comes back can be told apart and compared."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of ``manifest.json``.

    ``model_sha256``: of the shipped QDQ graph. ``run``: the file that the script runs. ``models``: the SHA-256 of every
    file of the model. ``ranked``: outputs behind a TopK -> the axis of their rows. ``classes``: outputs that are class
    scores. ``float_db``: how well the target keeps float tensors, where the plan has some.
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
        """The document as it is written."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


def read_manifest(path: Path) -> Manifest:
    """Read a manifest; another schema version or a wrong field is refused by name."""
    raw = read_document(path, "device manifest", SCHEMA_VERSION)
    try:
        return msgspec.convert(raw, Manifest)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from error


def file_name(name: str) -> str:
    """A tensor's name as a file's name, as Qualcomm's tools write it too: letters, digits and underscores."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Tensor names -> file names, all different, also where a file system does not tell A from a."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = file_name(name) or "_"
        number, unique = 2, plain
        while unique.lower() in taken:
            number, unique = number + 1, f"{plain}_{number}"
        taken.add(unique.lower())
        found[name] = unique
    return found


def sample_folder(number: int) -> str:
    """The folder of one sample's outputs."""
    return f"{number:03d}"
