"""The names of the range and rounding methods, in a module that does not import NumPy."""

from __future__ import annotations

from enum import StrEnum


class RangeMethod(StrEnum):
    """How the quantization range is chosen from observed values."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    MSE = "mse"
    ENTROPY = "entropy"


class RoundingMethod(StrEnum):
    """How weights are rounded to their grid."""

    NEAREST = "nearest"
    SCALE_SEARCH = "scale-search"
    SECOND_ORDER = "second-order"


# The default: to nearest; a search for a precision (``--precision auto``) tries second-order rounding too.
AUTO_ROUNDING = "auto"
