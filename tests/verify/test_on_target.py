from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from dovetail.backend import Runner, Sample
from dovetail.finding import Status, Thresholds
from dovetail.verify.target_run import quiet, run_on_target

RANDOM = np.random.default_rng(0)
FLOAT = RANDOM.standard_normal((1, 400)).astype(np.float32)
# A simulation that is hardly better than nothing: 2 dB.
POOR = FLOAT + 0.8 * RANDOM.standard_normal(FLOAT.shape).astype(np.float32)


def stream(array: np.ndarray):
    def run(samples: Iterable[Sample]) -> Iterator[Sample]:
        return ({"y": array} for _ in samples)

    return run


@pytest.mark.parametrize(
    ("target", "status", "said"),
    [
        (POOR, Status.PASS, "the target runs as simulated"),
        (POOR + 0.1 * FLOAT, Status.PASS, "the target runs as simulated"),
        (np.zeros_like(FLOAT), Status.FAIL, "'y' has nothing to do with the simulation's"),
    ],
)
def test_nothing_at_all_does_not_pass_for_a_poor_simulation(target: np.ndarray, status: Status, said: str) -> None:
    streams = {"float": stream(FLOAT), "simulation": stream(POOR), "target": stream(target)}
    _, verdict = run_on_target(streams, {}, [{}], Runner(None), None, Thresholds(), quiet)
    assert verdict.status is status, verdict.reason
    assert said in verdict.reason
