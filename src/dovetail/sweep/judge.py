"""Whether the target computes an output incorrectly, from the outputs alone: independent of the verdicts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail.encoding import Array
from dovetail.sweep.outcome import Failure, FailureKind, OutputQuality

# An output is wrong if it is so far below its simulation, and below what float16 operators reach.
WRONG_DB, VISIBLE_DB = 10.0, 40.0
# Stands for equal outputs, and for those that are not finite: JSON has no infinity.
_BOUND_DB = 200.0


def compare_outputs(
    exact: Mapping[str, Array], simulated: Mapping[str, Array], on_target: Mapping[str, Array]
) -> dict[str, OutputQuality]:
    """The SQNR against float of every float output, on the target and in the simulation."""
    return {
        name: OutputQuality(_sqnr_db(array, on_target[name]), _sqnr_db(array, simulated[name]))
        for name, array in exact.items()
        if array.dtype.kind == "f"
    }


def wrong_output(outputs: Mapping[str, OutputQuality]) -> Failure | None:
    """The wrong output that is furthest below its simulation, if there is one."""
    wrong = [item for item in outputs.items() if _is_wrong(item[1])]
    if not wrong:
        return None
    name, quality = min(wrong, key=lambda item: item[1].target_db - item[1].simulation_db)
    figures = f"target {quality.target_db:.1f} dB, simulation {quality.simulation_db:.1f} dB against float"
    return Failure(FailureKind.WRONG, f"output {name!r}: {figures}")


def _is_wrong(quality: OutputQuality) -> bool:
    return quality.target_db <= min(quality.simulation_db - WRONG_DB, VISIBLE_DB)


def _sqnr_db(exact: Array, other: Array) -> float:
    if exact.shape != other.shape or not np.all(np.isfinite(other)):
        return -_BOUND_DB
    reference = exact.astype(np.float64)
    noise = float(np.sum((reference - other.astype(np.float64)) ** 2))
    signal = float(np.sum(reference**2))
    if noise == 0.0:
        return _BOUND_DB
    return -_BOUND_DB if signal == 0.0 else float(np.clip(10 * np.log10(signal / noise), -_BOUND_DB, _BOUND_DB))
