"""The names of the range methods, apart from the code that needs NumPy at work."""

from __future__ import annotations

from enum import StrEnum


class RangeMethod(StrEnum):
    """How a range is chosen from what was observed."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    MSE = "mse"
    ENTROPY = "entropy"
