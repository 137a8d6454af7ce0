"""Detectors and encoders with random weights on the compilers of three targets: what has to be true of each.

``python -m bench.zoo targets`` runs all of them.
"""

from __future__ import annotations

from pathlib import Path

import dovetail
from dovetail.finding import Status
from dovetail.report.result import Result
from tests.networks import backbones, detectors, encoders, unusual
from tests.networks.catalog import network
from tests.networks.images import images

# Where every network has to run, and the verdicts that have to pass: TensorRT runs only on its GPU.
TARGETS = {
    ("qnn-htp:sm8550", "w8a16"): ("normalized", "compiled", "fidelity", "numerics"),
    ("xnnpack", "w8a8"): ("normalized", "compiled", "fidelity", "numerics"),
    ("tensorrt:sm89", "fp8"): ("normalized", "compiled", "fidelity"),
}
NETWORKS = (*unusual.NETWORKS, *detectors.NETWORKS, "segformer", "sam")


def check_network(name: str, target: str, precision: str, run: Path) -> None:
    """The compiler takes it, every tensor is as planned, and it runs as simulated."""
    result = fitted(name, target, precision, run)
    verdicts = [(verdict, result.verdicts[verdict]) for verdict in TARGETS[target, precision]]
    failed = [f"{name}: {verdict.reason}" for name, verdict in verdicts if verdict.status is not Status.PASS]
    assert not failed, "; ".join(failed)


def fitted(name: str, target: str, precision: str, run: Path) -> Result:
    """The whole pipeline; random weights amplify any error, so the accuracy is not judged."""
    return dovetail.fit(
        network(name),
        target=target,
        precision=precision,
        calibration=images(input_shape(name)),
        min_sqnr=0,
        operand_bits="8",
        baselines="none",
        output=run,
    )


def input_shape(name: str) -> tuple[int, ...]:
    """The shape of the input ``x``."""
    if name in unusual.NETWORKS:
        return unusual.NETWORKS[name][1]
    if name in detectors.NETWORKS:
        return detectors.NETWORKS[name][1]
    size = backbones.NETWORKS[name][1] if name in backbones.NETWORKS else encoders.NETWORKS[name][1]
    return (1, 3, size, size)
