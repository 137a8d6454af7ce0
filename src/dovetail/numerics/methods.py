"""The names of the range methods, in a module that does not import NumPy."""

from __future__ import annotations

from enum import StrEnum


class RangeMethod(StrEnum):
    """How the quantization range is chosen from observed values."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    MSE = "mse"
    ENTROPY = "entropy"
