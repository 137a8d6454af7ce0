"""The bit width of second operands is chosen by noise and the compiler's estimate, on an SoC that has estimates."""

from __future__ import annotations

from pathlib import Path

import pytest

import dovetail
from dovetail.finding import Status
from dovetail.report.result import Result, load_result
from tests.networks.vit_tiny import pictures, save

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")


def fitted(folder: Path, bits: str) -> Result:
    path = save(folder, layers=1)
    return dovetail.fit(
        path,
        target="qnn-htp:soc52",
        precision="w8a16",
        calibration={"image": pictures(2)},
        baselines="none",
        operand_bits=bits,
        output=folder / bits,
    )


def test_operands_are_chosen_by_noise_and_estimate_and_both_are_in_the_result(tmp_path: Path) -> None:
    wide, narrow, auto = (fitted(tmp_path, bits) for bits in ("16", "8", "auto"))
    times = {r.run: r.metrics.latency_estimate_us["fitted"].mid_us for r in (wide, narrow, auto)}
    assert times["8"] < times["16"]
    assert wide.decisions == ()
    together, *each = auto.decisions
    rows = {alternative.label: alternative.figures for alternative in together.alternatives}
    assert rows["all operands 16-bit"]["estimate_us"] == times["16"]
    assert any(label.startswith("8-bit: ") and "estimate_us" in figures for label, figures in rows.items())
    assert len(each) == 2  # scores, and scores by V
    assert all({"saved_us", "sqnr_db"} == set(decision.alternatives[1].figures) for decision in each)
    assert rows["all operands 16-bit"]["sqnr_db"] - rows[together.taken]["sqnr_db"] <= 1.0
    assert times["auto"] <= times["16"]
    for result in (wide, narrow, auto):
        assert result.verdicts["fidelity"].status is Status.PASS, result.verdicts["fidelity"].reason
    assert load_result(tmp_path / "auto" / "result.json").decisions == auto.decisions
