"""Sentinels and masks on the real compiler and the emulator: with their range, everything else is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.finding import Severity, Status
from dovetail.report.result import Result
from dovetail.storage import Reason
from tests.networks.masked_attention import FORMS, masked_attention, masked_samples
from tests.networks.masked_decoder import BOXES, PARTS, masked_decoder, memory

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

LOWEST = ("-1e9", "-3.4028234663852886e38")


def decoder(folder: Path, *parts: str, **options: object) -> Result:
    data = {"calibration": {"memory": memory(16, seed=1)[:, 0]}, "evaluation": {"memory": memory(8, seed=2)[:, 0]}}
    settings = {"target": "qnn-htp:sm8550", "precision": "w8a16", "baselines": "none", **data, **options}
    return dovetail.fit(masked_decoder(*parts), output=folder / "run", force=True, **settings)


def boxes_db(result: Result) -> float:
    """The SQNR of the boxes on the emulator."""
    return (result.metrics.sqnr_db.target_vs_float or {})[BOXES] or 0.0


def test_the_decoder_with_and_without_repair(tmp_path: Path) -> None:
    twin, repaired = decoder(tmp_path), decoder(tmp_path, *PARTS)
    assert repaired.failed == ()
    assert repaired.verdicts["numerics"].status is Status.PASS
    assert boxes_db(repaired) > boxes_db(twin) - 1
    plain = decoder(tmp_path, *PARTS, range_repair=False)
    assert boxes_db(plain) < 10
    named = " ".join(finding.message for finding in plain.findings if finding.code in ("Q508", "Q509"))
    assert all(
        text in named for text in ("'masked_anchors'", "'ratio0'", "Div 'decoder/Div_33'", "Log 'decoder/Log_34'")
    )


def test_auto_is_as_accurate_as_without_the_three_culprits_and_names_them(tmp_path: Path) -> None:
    twin, auto = decoder(tmp_path), decoder(tmp_path, *PARTS, precision="auto")
    assert auto.failed == ()
    assert boxes_db(auto) > boxes_db(twin) - 1
    whole = next(row for row in auto.decisions if row.knob == "mixed" and row.is_whole)
    figures = next(row.figures for row in whole.alternatives if row.label == whole.taken)
    assert figures["boundaries"] <= 6
    tensors = [row for row in auto.plan if row.edge is None and row.why is not Reason.INTERIOR]
    assert sum(not row.dtype.is_quantized for row in tensors) <= 0.1 * len(tensors)
    named = " ".join((*auto.notes, *(finding.message for finding in auto.findings)))
    for culprit in ("'masked_anchors': 32 sentinels of 1e+34", "'logit0': replaced by", "'logit1': replaced by"):
        assert culprit in named
    assert (
        "Mul 'decoder/Mul_66' multiplies coordinates relative to the image by up to 640: its output 'boxes' ranges"
        in named
    )


@pytest.mark.parametrize(("precision", "severity"), [("w8a16", Severity.NOTE), ("w8a8", Severity.WARNING)])
def test_boxes_times_the_size_of_the_image_are_named(precision: str, severity: Severity, tmp_path: Path) -> None:
    """With 8 bits they are multiples of 2.5 pixels."""
    result = decoder(tmp_path, "image_size", precision=precision)
    (finding,) = [finding for finding in result.findings if finding.code == "Q510"]
    assert finding.severity is severity
    assert (
        "Mul 'decoder/Mul_56' multiplies coordinates relative to the image by up to 640: its output 'boxes'"
        in finding.message
    )
    assert "read by the caller, as an output of the model" in finding.message
    assert "--keep boxes=fp16" in finding.fix


def test_the_keep_lines_of_the_findings_help(tmp_path: Path) -> None:
    keep = ("unactivated=fp16", "boxes0=fp16", "ratio0=fp16", "logit0=fp16", "ratio1=fp16", "logit1=fp16")
    plain = decoder(tmp_path, *PARTS, range_repair=False)
    lines = " ".join(finding.fix for finding in plain.findings if finding.code in ("Q508", "Q509"))
    assert all(f"--keep {pattern}" in lines for pattern in keep)
    assert boxes_db(decoder(tmp_path, *PARTS, range_repair=False, keep=keep)) > 40


@pytest.mark.parametrize("lowest", LOWEST)
@pytest.mark.parametrize("body", FORMS)
def test_a_mask_from_a_boolean_input(body: str, lowest: str, tmp_path: Path) -> None:
    """The scores have the range that the mask needs for exact zeros, which calibration data decides; not -10 000."""
    settings = {"target": "qnn-htp:sm8550", "precision": "w8a16", "baselines": "none", "force": True}
    settings |= {"calibration": masked_samples(), "output": tmp_path}
    result = dovetail.fit(masked_attention(body, lowest), **settings)
    assert result.failed == ()
    (row,) = [row for row in result.plan if row.original_name == "masked" and row.edge is None]
    assert -400 < -float(np.asarray(row.scale)) * int(np.asarray(row.zero_point)) < -104
    simulation = result.metrics.sqnr_db.simulation_vs_float["y"] or 0.0
    plain = dovetail.fit(masked_attention(body, lowest), range_repair=False, **settings)
    assert simulation > 50
    assert (plain.metrics.sqnr_db.simulation_vs_float["y"] or 0.0) < 20
