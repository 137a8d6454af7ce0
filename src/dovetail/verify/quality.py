"""One tensor on the target and in the simulation: how far each is from float, and whether the target is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dovetail.encoding import Array
from dovetail.numerics.metrics import Comparison
from dovetail.verify.verdicts import bounded_db

# How far the SQNR of a tensor may be below its simulation, and that of a channel, which has fewer values.
DROP_DB, CHANNEL_DROP_DB = 3.0, 10.0


@dataclass(frozen=True, slots=True)
class TensorAgreement:
    """How far target and simulation are from float at one tensor; ``is_off``: the target is wrong."""

    target_db: float
    simulation_db: float
    is_off: bool


def quality_of(expected: Array, simulated: Array, on_target: Array, level_db: float) -> TensorAgreement:
    """Compare a tensor on the target with its simulation, as a whole and per channel."""
    target_db, simulation_db = (bounded_db(Comparison.of(expected, array).sqnr_db) for array in (on_target, simulated))
    if not np.all(np.isfinite(on_target)) and np.all(np.isfinite(simulated)):
        lowest = -bounded_db(math.inf)
        return TensorAgreement(lowest if math.isnan(target_db) else target_db, simulation_db, is_off=True)
    is_off = simulation_db - target_db > DROP_DB and target_db < level_db
    is_off = is_off or _has_wrong_channel(expected, simulated, on_target, level_db)
    return TensorAgreement(target_db, simulation_db, is_off)


def _has_wrong_channel(expected: Array, simulated: Array, on_target: Array, level_db: float) -> bool:
    """Whether a channel, along the second or the last axis, is far below its simulation: the SQNR of the whole tensor
    may hide it."""
    for axis in {1, expected.ndim - 1} if expected.ndim > 1 else set[int]():
        exact = _by_channel(expected, axis)
        signal = np.sum(exact**2, axis=1)
        simulation_noise, target_noise = (
            np.sum((exact - _by_channel(array, axis)) ** 2, axis=1) for array in (simulated, on_target)
        )
        scale = np.where(signal > 0, signal, 1.0)
        below_simulation = target_noise > simulation_noise * 10 ** (CHANNEL_DROP_DB / 10)
        below_level = target_noise / scale > 10 ** (-level_db / 10)
        if np.any((signal > 0) & below_simulation & below_level):
            return True
    return False


def _by_channel(array: Array, axis: int) -> Array:
    """Reshape to [channel, values] in float64."""
    return np.moveaxis(array.astype(np.float64), axis, 0).reshape(array.shape[axis], -1)
