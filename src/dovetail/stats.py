"""Calibration statistics: the range and histogram of each tensor, and the data they were taken from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.encoding import Array


@dataclass(frozen=True, slots=True)
class DataInfo:
    """The data that was used; recorded with every metric that was measured on it."""

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
    """All calibration statistics; the digests of the samples tell whether another data set overlaps."""

    tensors: Mapping[str, TensorStats]
    data: DataInfo
    digests: tuple[bytes, ...] = ()
