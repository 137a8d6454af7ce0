"""The compiler's own estimates for a graph: latency from the profile, memory traffic from the log; no measurements."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
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
# The log line for an SoC without latency estimates, and the log keys of the memory traffic.
_UNSUPPORTED = re.compile(r"Performance Estimates unsupported.*")
_BYTES = {
    "read_bytes": "read_total_bytes",
    "write_bytes": "write_total_bytes",
    "fill_bytes": "fill_bytes",
    "spill_bytes": "spill_bytes",
}


class UnreadableError(Exception):
    """A profile or a log does not have the expected format; the message quotes the line that could not be parsed."""


def read_estimate(profile: Path, log: str) -> tuple[Estimate | None, str]:
    """Return the estimate in a profile, or None and why: the compiler's message, or the line that is not readable."""
    if match := _UNSUPPORTED.search(log):
        return None, match[0].strip()
    try:
        values = _profile_values(profile)
        estimate = Estimate(
            **{field: _value(values, name) for field, name in _ROWS.items()},
            fill_bytes=sum(_value(values, name) for name in _FILLS),
            spill_bytes=sum(_value(values, name) for name in _SPILLS),
        )
    except UnreadableError as error:
        return None, f"the profile could not be read: {error}"
    return estimate, ""


def _profile_values(profile: Path) -> dict[str, int]:
    """The values of the rows that an estimate needs, by row name."""
    if not profile.exists():
        raise UnreadableError(f"{profile.name} was not written")
    needed, values = {*_ROWS.values(), *_FILLS, *_SPILLS}, {}
    with profile.open(newline="") as stream:
        for row in csv.reader(stream):
            if len(row) < 7 or row[6] not in needed:
                continue
            if not row[2].isdigit():
                raise UnreadableError(",".join(row))
            values[row[6]] = int(row[2])
    return values


def _value(values: dict[str, int], name: str) -> int:
    if name not in values:
        raise UnreadableError(f"the row {name!r} is missing")
    return values[name]


def read_traffic(log: str) -> tuple[Traffic | None, str]:
    """Return the memory traffic of a graph according to the compiler's log, or None and why it is not known."""
    traffic = {}
    for field, name in _BYTES.items():
        lines = list(_values_of(name, log))
        bad = [line for line in lines if not line.strip().isdigit()]
        if bad or not lines:
            problem = f"{name}={bad[0].strip()}" if bad else f"the line {name}= is missing"
            return None, f"the compiler's log could not be read: {problem}"
        traffic[field] = sum(int(line) for line in lines)
    return Traffic(**traffic), ""


def _values_of(name: str, log: str) -> Iterator[str]:
    """What follows ``name=`` on its lines. Logs have megabytes, in which a regular expression takes a second."""
    position = -1
    while (position := log.find(f"{name}=", position + 1)) >= 0:
        if not re.match(r"\w", log[position - 1 : position]):
            end = log.find("\n", position)
            yield log[position + len(name) + 1 : end if end >= 0 else None]
