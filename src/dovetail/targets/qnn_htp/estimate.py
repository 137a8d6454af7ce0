"""The vendor's figures about a compiled graph: latency from the profile, bytes from the log; nothing is measured."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from dovetail.backend import Estimate, Traffic

_ROWS = {
    "lower_us": "Simulated (Accelerator exec time us (lower estimate))",
    "mid_us": "Simulated (Accelerator exec time us)",
    "upper_us": "Simulated (Accelerator exec time us (upper estimate))",
    "ops_without_cost": "Missing Ops (Number of Ops with no Costs associated)",
}
_FILLS = ("Input Fill", "Intermediate Fill", "Inter HTP Fill")
_SPILLS = ("Intermediate Spill", "Inter HTP Spill", "Output Spill")
# How the log says that a SoC has no estimate, and how it says what a graph moves.
_UNSUPPORTED = re.compile(r"Performance Estimates unsupported.*")
_BYTES = {
    "read_bytes": "read_total_bytes",
    "write_bytes": "write_total_bytes",
    "fill_bytes": "fill_bytes",
    "spill_bytes": "spill_bytes",
}


class UnreadableError(Exception):
    """A profile or a log is not what it was in the versions this was written for; the text has the offending line."""


def read_estimate(profile: Path, log: str) -> tuple[Estimate | None, str]:
    """The estimate in a profile, or why there is none: in the vendor's words, or the line that could not be read."""
    if said := _UNSUPPORTED.search(log):
        return None, said[0].strip()
    try:
        numbers = _profile_numbers(profile)
        estimate = Estimate(
            **{field: _named(numbers, name) for field, name in _ROWS.items()},
            fill_bytes=sum(_named(numbers, name) for name in _FILLS),
            spill_bytes=sum(_named(numbers, name) for name in _SPILLS),
        )
    except UnreadableError as error:
        return None, f"the profile could not be read: {error}"
    return estimate, ""


def _profile_numbers(profile: Path) -> dict[str, int]:
    """The rows that an estimate is made of."""
    if not profile.exists():
        raise UnreadableError("there is none")
    wanted, numbers = {*_ROWS.values(), *_FILLS, *_SPILLS}, {}
    with profile.open(newline="") as stream:
        for row in csv.reader(stream):
            if len(row) < 7 or row[6] not in wanted:
                continue
            if not row[2].isdigit():
                raise UnreadableError(",".join(row))
            numbers[row[6]] = int(row[2])
    return numbers


def _named(numbers: dict[str, int], name: str) -> int:
    if name not in numbers:
        raise UnreadableError(f"there is no row {name!r}")
    return numbers[name]


def read_traffic(log: str) -> tuple[Traffic | None, str]:
    """The bytes that the compiler says a graph moves, or why they are not known."""
    found = {}
    for field, name in _BYTES.items():
        lines = re.findall(rf"(?<!\w){name}=(.*)", log)
        bad = [line for line in lines if not line.strip().isdigit()]
        if bad or not lines:
            missing = f"{name}={bad[0].strip()}" if bad else f"there is no line {name}="
            return None, f"the compiler's log could not be read: {missing}"
        found[field] = sum(int(line) for line in lines)
    return Traffic(**found), ""
