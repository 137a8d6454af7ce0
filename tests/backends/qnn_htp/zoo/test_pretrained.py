"""Networks with their real weights on the HTP compiler and emulator; all of them: python -m bench.real_networks."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("PIL", reason="needs the package pillow")
pytest.importorskip("skimage", reason="needs the package scikit-image")

from dovetail.report.result import Result
from tests.networks import pretrained_checks
from tests.networks.htp_checks import PHONE
from tests.networks.pretrained import NETWORKS
from tests.networks.wheels import fetch_or_skip

# To calibrate with and to judge on: the suite shows that they run; accuracy is measured by the bench.
SAMPLES = 4


def fitted(name: str, run: Path) -> Result:
    fetch_or_skip(NETWORKS[name].package, NETWORKS[name].file)
    options = {"samples": SAMPLES, "emulate": 1, "operand_bits": "8"}
    return pretrained_checks.fit_pretrained(name, PHONE, "w8a16", run, **options)


def test_yolov8n_runs_as_simulated_and_finds_the_boxes_of_float(tmp_path: Path) -> None:
    """It has Conv -> SiLU at 10 x 10, which the compiler gets wrong without a workaround: numerics fails at once."""
    result = fitted("yolov8n", tmp_path / "run")
    assert not pretrained_checks.not_passed(result)
    assert set(pretrained_checks.figures_of(result)) == {"float", "simulation"}


@pytest.mark.parametrize("name", ["ppocrv6-det", "ppocrv6-cls"])
def test_networks_with_dead_channels_run_as_simulated(name: str, tmp_path: Path) -> None:
    """Channels whose weights are nearly zero have tiny scales, which random weights do not show."""
    assert not pretrained_checks.not_passed(fitted(name, tmp_path / "run"))
