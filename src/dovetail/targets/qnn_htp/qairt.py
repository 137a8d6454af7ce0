"""QAIRT versions: which one wrote a file, and whether the one on a device is expected to load it."""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dovetail.errors import InputError

Version = tuple[int, int]
# The build number in the files that QAIRT writes: v2.51.0.260929181845 in a context binary, without the v in a DLC.
_BUILD = re.compile(rb"(?<![\d.])(\d+\.\d+\.\d+\.\d{12})(?!\d)")


class DeviceFileKind(StrEnum):
    """The kinds of compiled files that a device loads."""

    CONTEXT = "context binary"
    DLC = "DLC"


class LoadExpectation(StrEnum):
    """Whether a runtime is expected to load a file."""

    YES = "expected to load"
    NO = "not expected to load"
    NOT_KNOWN = "not known to load"


@dataclass(frozen=True, slots=True)
class LoadSupport:
    """Whether a runtime that is older (or not older) than a file's QAIRT loads the file, and how this is known.

    ``measured`` applies if both versions were measured, ``extrapolated`` otherwise.
    """

    kind: DeviceFileKind
    older_runtime: bool
    measured: LoadExpectation
    extrapolated: LoadExpectation
    source: str


# The wheels onnxruntime-qnn 2.3.0 to 2.7.0 contain QAIRT 2.47 to 2.51. Each of the five compiled a graph of three
# operators and a whole ViT, and each of the five loaded all of these files.
MEASURED: tuple[Version, ...] = ((2, 47), (2, 48), (2, 49), (2, 50), (2, 51))
LOADING = (
    LoadSupport(
        DeviceFileKind.CONTEXT,
        older_runtime=True,
        measured=LoadExpectation.NO,
        extrapolated=LoadExpectation.NO,
        source="measured on the emulator with QAIRT 2.47 to 2.51: all 10 such combinations are rejected with "
        "'Using newer context binary on old SDK'; the runtime compares the major and minor version, not the patch",
    ),
    LoadSupport(
        DeviceFileKind.CONTEXT,
        older_runtime=False,
        measured=LoadExpectation.YES,
        extrapolated=LoadExpectation.YES,
        source="measured on the emulator with QAIRT 2.47 to 2.51: all 15 such combinations load and run; "
        "Qualcomm's maintainers require a runtime that is at least as new (ai-hub-apps issue 148)",
    ),
    LoadSupport(
        DeviceFileKind.DLC,
        older_runtime=True,
        measured=LoadExpectation.YES,
        extrapolated=LoadExpectation.NOT_KNOWN,
        source="measured with QAIRT 2.47 to 2.51: all 10 such combinations open, compose and finalize, if the older "
        "runtime supports every operator; this is not documented",
    ),
    LoadSupport(
        DeviceFileKind.DLC,
        older_runtime=False,
        measured=LoadExpectation.YES,
        extrapolated=LoadExpectation.YES,
        source="measured with QAIRT 2.47 to 2.51: all 15 such combinations open, compose and finalize; documented "
        "for DLCs of earlier releases (80-63442-10, Application Integration Tips)",
    ),
)


# The onnxruntime-qnn wheel for each QAIRT version, from the wheels' own metadata.
WHEELS: dict[Version, str] = dict(zip(MEASURED, ("2.3.0", "2.4.0", "2.5.0", "2.6.0", "2.7.0"), strict=True))


def parse_version(text: str) -> Version:
    """Return the major and minor version of ``2.47`` or ``2.47.0``; a runtime compares only these."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.\d+)*", text.strip())
    if match is None:
        raise InputError(f"--option device_qairt={text}: expected a QAIRT version, as in 2.47")
    return int(match[1]), int(match[2])


def made_by(path: Path) -> str:
    """Return the QAIRT build number in a file; empty if the file contains none or more than one."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        builds = set(_BUILD.findall(content))
    return builds.pop().decode() if len(builds) == 1 else ""


def load_fix(device: Version) -> str:
    """Return what to do if the device's runtime is not expected to load a compiled file."""
    name = ".".join(map(str, device))
    wheel = WHEELS.get(device)
    compiler = f"in onnxruntime-qnn {wheel}" if wheel else "in its SDK, no onnxruntime-qnn wheel contains it"
    return f"compile model.onnx with QAIRT {name} ({compiler}), compile it on the device, or update the device's QAIRT"


def can_load(kind: DeviceFileKind, made: Version, device: Version) -> tuple[LoadExpectation, str]:
    """Return whether a device's runtime is expected to load a file, and how this is known."""
    row = next(row for row in LOADING if row.kind is kind and row.older_runtime == (device < made))
    if made in MEASURED and device in MEASURED:
        return row.measured, row.source
    return row.extrapolated, f"{row.source}; this combination was not measured"
