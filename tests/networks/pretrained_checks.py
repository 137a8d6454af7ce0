"""Pretrained networks on every target: fitted, and what has to be true of each.

The suite runs few of them; ``python -m bench.real_networks`` runs all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dovetail
from dovetail.finding import Status
from dovetail.report.result import Result
from tests.networks.packaged import PACKAGED
from tests.networks.pretrained import NETWORKS, Data

# Where each network has to run, and at which precisions.
TARGETS: tuple[tuple[str, str], ...] = (
    ("qnn-htp:sm8550", "w8a16"),
    ("qnn-htp:sm8550", "w8a8"),
    ("qnn-htp:soc52", "w8a16"),
    ("qnn-htp:soc52", "w8a8"),
    ("tensorrt:sm89", "fp8"),
    ("tensorrt:sm89", "w8a8"),
    ("xnnpack", "w8a8"),
    ("ort-cpu", "w8a8"),
)
PACKAGED_TARGETS = tuple(cell for cell in TARGETS if "soc52" not in cell[0])
# The share of the float model's boxes that may be lost, of YOLOv8n.
BOXES, BOXES_DROP = "matched_boxes", {"w8a16": 0.05, "w8a8": 0.15}
_EMULATED = "qnn-htp"
_NOT_RUN = "tensorrt"


def fit_pretrained(
    name: str, target: str, precision: str, run: Path, *, samples: int | None = None, **options: Any
) -> Result:
    """One network on one target, calibrated and judged on its own images; raises NotFetched without its package.

    ``samples``: how many to calibrate with and to judge on; all by default.
    """
    network = {**NETWORKS, **PACKAGED}[name]
    path = network.path
    max_drop = BOXES_DROP.get(precision) if name == "yolov8n" else None
    return dovetail.fit(
        path,
        target=target,
        precision=precision,
        shape=network.shape,
        calibration=first(network.calibration(), samples),
        evaluation=first(network.evaluation(path), samples),
        metric=None if network.metric is None else network.metric(path),
        max_drop=max_drop,
        baselines="none",
        output=run,
        **{**network.options, **options},
    )


def first(data: Data, samples: int | None) -> Data:
    """The first samples, or all."""
    return {key: array[:samples] for key, array in data.items()}


def is_emulated(target: str) -> bool:
    """Whether a target runs on a slow emulator, on as many samples as ``emulate`` says."""
    return target.startswith(_EMULATED)


def required(target: str, precision: str) -> tuple[str, ...]:
    """The verdicts that have to pass: TensorRT runs only on its GPU, and in 8 bit the accuracy is only reported."""
    numerics = () if target.startswith(_NOT_RUN) else ("numerics",)
    accuracy = ("accuracy",) if precision == "w8a16" else ()
    return ("normalized", "compiled", "fidelity", *numerics, *accuracy)


def not_passed(result: Result) -> Mapping[str, str]:
    """The required verdicts that do not pass, with the reason of each, and boxes that are lost."""
    verdicts = {name: result.verdicts[name] for name in required(result.target, result.precision)}
    failed = {name: verdict.reason for name, verdict in verdicts.items() if verdict.status is not Status.PASS}
    lost = [
        f"{100 * figures[BOXES]:.1f} % of float's boxes are found in {way}"
        for way, figures in figures_of(result).items()
        if figures.get(BOXES, 1) < 1 - BOXES_DROP.get(result.precision, 1)
    ]
    return {**failed, **({BOXES: "; ".join(lost)} if lost else {})}


def figures_of(result: Result) -> Mapping[str, Mapping[str, float]]:
    """The metric in float, in simulation and on the target; ``emulated`` is that of the target on few samples."""
    metric, emulated = result.metrics.accuracy, result.metrics.accuracy_emulated
    figures = {} if metric is None else dict(metric.figures)
    return figures if emulated is None else {**figures, "emulated": emulated.figures["target"]}
