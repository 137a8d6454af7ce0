"""One network from three exporters: the compiler gets the same graph for each."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("onnxscript", reason="needs the package onnxscript")
pytest.importorskip("transformers", reason="needs the package transformers")

import dovetail
from dovetail.backend import Estimate
from tests.networks.vit_export import EXPORTERS, vit
from tests.networks.vit_tiny import pictures


def test_the_estimate_does_not_depend_on_the_exporter(tmp_path: Path) -> None:
    by_exporter: dict[str, dict[str, Estimate]] = {}
    for exporter in EXPORTERS:
        result = dovetail.fit(
            vit(exporter, layers=1),
            target="qnn-htp:soc52",
            precision="w8a16",
            operand_bits="8",
            calibration={"x": pictures(2)},
            output=tmp_path / exporter,
            baselines="all" if exporter == "dynamo-sdpa" else "none",
        )
        assert not result.failed, (exporter, result.verdicts)
        by_exporter[exporter] = dict(result.metrics.latency_estimate_us)
    times = [estimates["fitted"].mid_us for estimates in by_exporter.values()]
    assert max(times) <= 1.05 * min(times)
    estimates = by_exporter["dynamo-sdpa"]
    ratio = estimates["fitted"].ratio_to(estimates["naive"])
    assert ratio is not None
    assert ratio < 0.6  # with 12 layers 0.25: python -m bench.htp vit
