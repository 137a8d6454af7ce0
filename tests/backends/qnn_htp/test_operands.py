"""The width of second operands with the vendor's estimate beside the noise, on an SoC that gives one."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.vit_tiny import pictures, save

import dovetail
from dovetail.finding import Status
from dovetail.report.result import Result, load_result

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")


def fitted(folder: Path, operands: str) -> Result:
    path = save(folder, layers=1)
    return dovetail.fit(
        path,
        target="qnn-htp:soc52",
        precision="w8a16",
        calibration={"image": pictures(2)},
        baselines="none",
        operands=operands,
        output=folder / operands,
    )


def test_operands_are_chosen_by_noise_and_estimate_and_both_are_in_the_result(tmp_path: Path) -> None:
    wide, narrow, auto = (fitted(tmp_path, operands) for operands in ("wide", "narrow", "auto"))
    times = {r.run: r.metrics.latency_estimate_us["fitted"].mid_us for r in (wide, narrow, auto)}
    assert times["narrow"] < times["wide"]
    assert wide.metrics.operands is None
    search = auto.metrics.operands
    assert search is not None
    assert {"wide"} < set(search.estimates_us)
    assert search.estimates_us["wide"].mid_us == times["wide"]
    assert len(search.operands) == 2  # scores, and scores by V
    assert all(row.saved_us is not None and row.narrow_sqnr_db is not None for row in search.operands)
    assert search.wide_sqnr_db is not None
    assert search.chosen_sqnr_db is not None
    assert search.wide_sqnr_db - search.chosen_sqnr_db <= 1.0
    assert times["auto"] <= times["wide"]
    for result in (wide, narrow, auto):
        assert result.verdicts["fidelity"].status is Status.PASS, result.verdicts["fidelity"].reason
    assert load_result(tmp_path / "auto" / "result.json").metrics.operands == search
