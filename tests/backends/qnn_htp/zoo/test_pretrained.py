"""Networks with their real weights on the HTP compiler and emulator; all of them: python -m bench.real_networks."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
pytest.importorskip("PIL", reason="needs the package pillow")
pytest.importorskip("skimage", reason="needs the package scikit-image")

from dovetail.report.result import Result
from tests.networks import pretrained_checks
from tests.networks.htp_checks import PHONE
from tests.networks.pretrained import NETWORKS
from tests.networks.wheels import fetch_or_skip

EMULATED = 4


def fitted(name: str, precision: str, run: Path, **options: object) -> Result:
    fetch_or_skip(NETWORKS[name].package, NETWORKS[name].file)
    return pretrained_checks.fit_pretrained(name, PHONE, precision, run, operand_bits="8", **options)


def test_yolov8n_finds_the_boxes_of_float_on_the_emulator(tmp_path: Path) -> None:
    """At least 95 % of at least 50 boxes in simulation, and of those in four images on the emulator."""
    result = fitted("yolov8n", "w8a16", tmp_path / "run", emulate=EMULATED)
    assert not pretrained_checks.not_passed(result)
    assert set(pretrained_checks.figures_of(result)) == {"float", "simulation", "emulated"}
    assert result.metrics.accuracy_emulated is not None
    assert result.metrics.accuracy_emulated.data.samples == EMULATED


@pytest.mark.parametrize("name", ["ppocrv6-det", "ppocrv6-cls"])
def test_networks_with_dead_channels_run_as_simulated(name: str, tmp_path: Path) -> None:
    """Channels whose weights are nearly zero have tiny scales, which random weights do not show."""
    assert not pretrained_checks.not_passed(fitted(name, "w8a16", tmp_path / "run"))
