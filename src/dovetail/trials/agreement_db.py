"""One figure for how well the outputs of a run agree with those of another."""

from __future__ import annotations

import statistics

from dovetail.verify.compare import Agreement
from dovetail.verify.verdicts import lowest_if_nan_db


def worst_db(agreement: Agreement) -> float:
    """The SQNR of the worst output; NaN counts as the lowest value."""
    figures = (comparison.sqnr_db for comparison in agreement.outputs.values())
    return min(map(lowest_if_nan_db, figures), default=0.0)


def mean_db(agreement: Agreement) -> float:
    """The SQNR of the worst output, mean over samples; NaN counts as the lowest value."""
    means = (statistics.fmean(map(lowest_if_nan_db, values)) for values in agreement.per_sample.values())
    return min(means, default=0.0)


def worst_db_per_sample(agreement: Agreement) -> list[float]:
    """The SQNR of the worst output of every sample; empty if no output is float."""
    return [min(map(lowest_if_nan_db, figures)) for figures in zip(*agreement.per_sample.values(), strict=True)]
