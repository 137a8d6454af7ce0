"""QAIRT versions: which one made a file, and whether the one on a device can be expected to load it."""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dovetail.errors import InputError

Version = tuple[int, int]
# A build as it stands in what QAIRT writes: v2.51.0.260929181845 in a context binary, without the v in a DLC.
_BUILD = re.compile(rb"(?<![\d.])(\d+\.\d+\.\d+\.\d{12})(?!\d)")


class DeviceFileKind(StrEnum):
    """What a device may be given."""

    CONTEXT = "context binary"
    DLC = "DLC"


class LoadExpectation(StrEnum):
    """Whether a runtime can be expected to load a file."""

    YES = "expected to load"
    NO = "not expected to load"
    NOT_KNOWN = "not known to load"


@dataclass(frozen=True, slots=True)
class LoadSupport:
    """What is known of one kind of file on a runtime that is older or newer than what made it, and from where."""

    kind: DeviceFileKind
    older_runtime: bool
    measured: LoadExpectation
    beyond: LoadExpectation
    source: str


# The wheels onnxruntime-qnn 2.3.0 to 2.7.0 carry QAIRT 2.47 to 2.51. Every file was made by each of the five and given
# to each of the five: a graph of three operators and a whole ViT. ``measured`` holds between these, ``beyond`` outside.
MEASURED: tuple[Version, ...] = ((2, 47), (2, 48), (2, 49), (2, 50), (2, 51))
LOADING = (
    LoadSupport(
        DeviceFileKind.CONTEXT,
        older_runtime=True,
        measured=LoadExpectation.NO,
        beyond=LoadExpectation.NO,
        source="measured on the emulator with QAIRT 2.47 to 2.51: all 10 such pairs are refused with 'Using newer "
        "context binary on old SDK'; the check compares major and minor number, not the patch",
    ),
    LoadSupport(
        DeviceFileKind.CONTEXT,
        older_runtime=False,
        measured=LoadExpectation.YES,
        beyond=LoadExpectation.YES,
        source="measured on the emulator with QAIRT 2.47 to 2.51: all 15 such pairs load and run; Qualcomm's "
        "maintainers ask for a runtime at least as new (ai-hub-apps issue 148)",
    ),
    LoadSupport(
        DeviceFileKind.DLC,
        older_runtime=True,
        measured=LoadExpectation.YES,
        beyond=LoadExpectation.NOT_KNOWN,
        source="measured with QAIRT 2.47 to 2.51: all 10 such pairs open, compose and finalize, as far as the older "
        "runtime has every operator; nothing is documented",
    ),
    LoadSupport(
        DeviceFileKind.DLC,
        older_runtime=False,
        measured=LoadExpectation.YES,
        beyond=LoadExpectation.YES,
        source="measured with QAIRT 2.47 to 2.51: all 15 such pairs open, compose and finalize; documented for DLCs of "
        "earlier releases (80-63442-10, Application Integration Tips)",
    ),
)


# Which wheel carries which QAIRT, as the wheels say themselves.
WHEELS: dict[Version, str] = dict(zip(MEASURED, ("2.3.0", "2.4.0", "2.5.0", "2.6.0", "2.7.0"), strict=True))


def parse_version(text: str) -> Version:
    """``2.47`` or ``2.47.0`` -> major and minor, which is what a runtime looks at."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.\d+)*", text.strip())
    if match is None:
        raise InputError(f"--option device_qairt={text}: must be a QAIRT version, as in 2.47")
    return int(match[1]), int(match[2])


def made_by(path: Path) -> str:
    """The QAIRT build that wrote a file, as it says itself; empty when it names none or more than one."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        builds = set(_BUILD.findall(content))
    return builds.pop().decode() if len(builds) == 1 else ""


def instead(device: Version) -> str:
    """What to do where a device's runtime is not expected to load what was made here."""
    name = ".".join(map(str, device))
    wheel = WHEELS.get(device)
    compiler = f"onnxruntime-qnn {wheel}, which carries it" if wheel else "its SDK, no wheel carries it"
    return f"compile model.onnx with QAIRT {name} ({compiler}), compile it on the device, or update the device's QAIRT"


def can_load(kind: DeviceFileKind, made: Version, device: Version) -> tuple[LoadExpectation, str]:
    """Whether a device's runtime can be expected to load a file, and from where that is known."""
    row = next(row for row in LOADING if row.kind is kind and row.older_runtime == (device < made))
    if made in MEASURED and device in MEASURED:
        return row.measured, row.source
    return row.beyond, f"{row.source}; this pair was not measured"
