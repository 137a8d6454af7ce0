"""The vendor's latency estimate, from the profile that the compiler writes at finalize; not a measurement."""

from __future__ import annotations

import csv
from pathlib import Path

from dovetail.target import Estimate

_ROWS = {
    "lower_us": "Simulated (Accelerator exec time us (lower estimate))",
    "mid_us": "Simulated (Accelerator exec time us)",
    "upper_us": "Simulated (Accelerator exec time us (upper estimate))",
    "ops_without_cost": "Missing Ops (Number of Ops with no Costs associated)",
}
_FILLS = ("Input Fill", "Intermediate Fill", "Inter HTP Fill")
_SPILLS = ("Intermediate Spill", "Inter HTP Spill", "Output Spill")


def read_estimate(profile: Path) -> Estimate | None:
    """The estimate in a profile; None where this SoC gives none."""
    if not profile.exists():
        return None
    with profile.open(newline="") as stream:
        numbers = {row[6]: int(row[2]) for row in csv.reader(stream) if len(row) > 6 and row[2].isdigit()}
    if any(name not in numbers for name in _ROWS.values()):
        return None
    return Estimate(
        **{field: numbers[name] for field, name in _ROWS.items()},
        fill_bytes=sum(numbers.get(name, 0) for name in _FILLS),
        spill_bytes=sum(numbers.get(name, 0) for name in _SPILLS),
    )
