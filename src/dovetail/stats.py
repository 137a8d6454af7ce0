"""What calibration saw: per tensor the range and a histogram, and which data it was."""

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
    """One tensor over all samples: smallest and largest value, and log-binned counts if a range search needs them."""

    low: float
    high: float
    counts: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Stats:
    """Everything that calibration saw; the digests of the samples tell whether another set overlaps with it."""

    tensors: Mapping[str, TensorStats]
    data: DataInfo
    digests: tuple[bytes, ...] = ()
