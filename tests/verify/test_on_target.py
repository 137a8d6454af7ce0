from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from dovetail.backend import Runner, Sample
from dovetail.finding import Status, Thresholds
from dovetail.verify.target_run import quiet, run_on_target

RANDOM = np.random.default_rng(0)
FLOAT = RANDOM.standard_normal((1, 400)).astype(np.float32)
# A poor simulation: 2 dB.
POOR = FLOAT + 0.8 * RANDOM.standard_normal(FLOAT.shape).astype(np.float32)


def stream(array: np.ndarray):
    def run(samples: Iterable[Sample]) -> Iterator[Sample]:
        return ({"y": array} for _ in samples)

    return run


@pytest.mark.parametrize(
    ("target", "status", "message"),
    [
        (POOR, Status.PASS, "target and simulation agree"),
        (POOR + 0.1 * FLOAT, Status.PASS, "target and simulation agree"),
        (np.zeros_like(FLOAT), Status.FAIL, "the target's output 'y' is unrelated to the simulation's: at most 1 dB"),
    ],
)
def test_zeros_do_not_pass_because_the_simulation_is_poor(target: np.ndarray, status: Status, message: str) -> None:
    streams = {"float": stream(FLOAT), "simulation": stream(POOR), "target": stream(target)}
    _, verdict = run_on_target(streams, {}, [{}], Runner(None), None, Thresholds(), quiet)
    assert verdict.status is status, verdict.reason
    assert message in verdict.reason
