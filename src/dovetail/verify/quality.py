"""One tensor on the target beside its simulation: how far each is from float, and whether the target's is off."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dovetail.encoding import Array
from dovetail.numerics.metrics import Comparison
from dovetail.verify.verdicts import bounded_db

# How far a tensor may be below its simulation; and a single channel, whose figure is from fewer numbers.
DROP_DB, CHANNEL_DROP_DB = 3.0, 10.0


@dataclass(frozen=True, slots=True)
class TensorAgreement:
    """How far target and simulation are from float at one tensor."""

    target_db: float
    simulation_db: float
    is_off: bool


def quality_of(expected: Array, simulated: Array, found: Array, level_db: float) -> TensorAgreement:
    """How a tensor on the target compares with its simulation, as a whole and at its worst channel."""
    ours, theirs = (bounded_db(Comparison.of(expected, each).sqnr_db) for each in (found, simulated))
    if not np.all(np.isfinite(found)) and np.all(np.isfinite(simulated)):
        return TensorAgreement(-bounded_db(math.inf) if math.isnan(ours) else ours, theirs, is_off=True)
    off = theirs - ours > DROP_DB and ours < level_db
    return TensorAgreement(ours, theirs, off or _has_wrong_channel(expected, simulated, found, level_db))


def _has_wrong_channel(expected: Array, simulated: Array, found: Array, level_db: float) -> bool:
    """Whether one channel, along the second or the last axis, is far below its simulation: as a whole the tensor may
    still look right."""
    for axis in {1, expected.ndim - 1} if expected.ndim > 1 else set[int]():
        exact, noisy, other = (_by_channel(each, axis) for each in (expected, simulated, found))
        signal = np.sum(exact**2, axis=1)
        noise, wrong = (np.sum((exact - each) ** 2, axis=1) for each in (noisy, other))
        scale = np.where(signal > 0, signal, 1.0)
        floor = 10 ** (-level_db / 10)
        if np.any((signal > 0) & (wrong > noise * 10 ** (CHANNEL_DROP_DB / 10)) & (wrong / scale > floor)):
            return True
    return False


def _by_channel(array: Array, axis: int) -> Array:
    """[channel, all else] in float64."""
    return np.moveaxis(array.astype(np.float64), axis, 0).reshape(array.shape[axis], -1)
