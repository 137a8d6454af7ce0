"""What calibration saw: per tensor the range, a histogram and per-channel magnitudes, and which data it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.encoding import Array


@dataclass(frozen=True, slots=True)
class DataInfo:
    """Which data was used; stands beside every figure that was made from it."""

    source: str
    samples: int
    sha256: str
    random: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TensorStats:
    """One tensor over all samples: smallest and largest value, log-binned counts where a range search needs them,
    and the largest magnitude per channel along the last axis."""

    low: float
    high: float
    counts: Array | None = None
    channel_max: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Stats:
    """Everything that calibration saw."""

    tensors: Mapping[str, TensorStats]
    data: DataInfo
