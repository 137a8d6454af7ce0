"""Values as text: by the unit in their name, with the header of their column."""

from __future__ import annotations

from collections.abc import Mapping

# Measured value of an alternative -> its column header.
HEADERS: Mapping[str, str] = {
    "sqnr_db": "SQNR dB",
    "simulation_sqnr_db": "simulation dB",
    "target_sqnr_db": "target dB",
    "estimate_us": "estimate us",
    "latency_us": "latency us",
    "time_ratio": "time ratio",
    "latency_ratio": "latency ratio",
    "float_macs_percent": "MACs in float %",
    "boundaries": "conversions",
}


def header_of(name: str) -> str:
    """The header of a value's column."""
    return HEADERS.get(name, name.replace("_", " "))


def with_unit(name: str, value: float | None) -> str:
    """Format a value by the unit in its name; empty if there is none."""
    if value is None:
        return ""
    if name.endswith("_db"):
        return f"{value:.1f}"
    if name.endswith("_us"):
        return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
    if name.startswith("drop of "):
        return f"{value:+.4f}"
    return f"{value:.2f}x" if name.endswith("_ratio") else f"{value:.4g}"
