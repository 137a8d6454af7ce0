"""The PP-OCRv6 recogniser on ONNX Runtime: fitted, and what has to be true of it.

The suite runs it at one precision; ``python -m bench.zoo lines`` at both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

import dovetail
from dovetail.finding import PASSES_WHEN, Status
from dovetail.report.result import Result
from tests.equality import Array
from tests.networks import rendered_lines
from tests.networks.wheels import ocr_model

DEGRADED_LINES = 80
CALIBRATION_LINES = 40
# Measured, exact of 80 degraded lines: float 67; w8a8 62 simulated and 63 on the target; w8a16 66 on both.
FLOAT_LINES = 60
LOST_LINES = {"w8a8": 10, "w8a16": 2}
NUMERICS_SPREAD_DB = 6.0
# Of w8a16, whose target runs as simulated; in w8a8 a character that flips moves the figure.
MIN_APART_DB = 40.0


def held_out() -> dict[str, Array]:
    lines = rendered_lines.texts(DEGRADED_LINES, seed=7)
    return {"x": rendered_lines.degraded(lines, seed=8), "text": rendered_lines.encode(lines)}


def fit_recogniser(precision: str, run: Path) -> Result:
    """Calibrated with clean and degraded lines, and read on others."""
    recogniser = ocr_model(rendered_lines.MODEL)
    lines = rendered_lines.texts(CALIBRATION_LINES, seed=1)
    images = [rendered_lines.clean(lines[::2], seed=2), rendered_lines.degraded(lines[1::2], seed=2)]
    return dovetail.fit(
        recogniser,
        target="ort-cpu",
        precision=precision,
        shape={"x": rendered_lines.SHAPE},
        calibration={"x": np.concatenate(images)},
        evaluation=held_out(),
        metric=rendered_lines.exact_lines(rendered_lines.characters(recogniser)),
        output=run,
    )


def check_lines(result: Result, precision: str) -> Mapping[str, int]:
    """Exact lines are reported and nearly all survive; gives how many, for each way of running."""
    accuracy = result.metrics.accuracy
    assert accuracy is not None
    lines = {way: round(figures["exact_lines"] * DEGRADED_LINES) for way, figures in accuracy.figures.items()}
    assert set(lines) == {"float", "simulation", "target"}
    assert lines["float"] >= FLOAT_LINES
    for way in ("simulation", "target"):
        assert lines[way] >= lines["float"] - LOST_LINES[precision], lines
    assert "exact_lines" in accuracy.metric
    assert accuracy.data.samples == DEGRADED_LINES
    assert not accuracy.data.random
    return lines


def check_verdicts(result: Result, precision: str) -> None:
    """Every verdict is there and passes; in 16 bit the target runs as simulated."""
    assert set(result.verdicts) == set(PASSES_WHEN) - {"budget", "device", "repaired"}
    assert all(verdict.reason and verdict.passes_when for verdict in result.verdicts.values())
    assert result.verdicts["normalized"].status is Status.PASS
    assert result.verdicts["compiled"].status is Status.PASS
    assert result.verdicts["fidelity"].status is Status.PASS
    # The output is a distribution: one character that flips moves it by decibels, so the figure itself is not held.
    simulated = result.metrics.sqnr_db.simulation_vs_float[rendered_lines.OUTPUT]
    assert result.metrics.sqnr_db.target_vs_float is not None
    ran = result.metrics.sqnr_db.target_vs_float[rendered_lines.OUTPUT]
    assert simulated is not None
    assert ran is not None
    assert abs(simulated - ran) <= NUMERICS_SPREAD_DB
    # Measured: w8a8 runs 2 dB better than its simulation, w8a16 as simulated.
    assert result.verdicts["numerics"].status is Status.PASS, result.verdicts["numerics"].reason
    assert result.metrics.sqnr_db.target_vs_simulation is not None
    between = result.metrics.sqnr_db.target_vs_simulation[rendered_lines.OUTPUT]
    assert between is not None
    assert precision != "w8a16" or between > MIN_APART_DB


def check_size(result: Result) -> None:
    """The weights are a quarter of their size."""
    size_bytes = result.metrics.size_bytes
    assert size_bytes["model.onnx"] < 0.3 * size_bytes["float"]


def check_hash(result: Result) -> None:
    """The hash says which lines were read: not those that calibration has seen."""
    assert result.metrics.accuracy is not None
    assert result.calibration is not None
    assert len(result.metrics.accuracy.data.sha256) == 64
    assert result.metrics.accuracy.data.sha256 != result.calibration.sha256
