"""Ranges that no integers can represent: a detector's decoder collapses with them, and does not after repair."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from bench import ranges
from dovetail import zoo
from dovetail.checking import check_file
from dovetail.errors import InputError
from dovetail.finding import Severity, Status
from dovetail.report.result import Result
from dovetail.targets import open_target
from tests.networks.masked_attention import FORMS, masked_attention, masked_samples
from tests.networks.masked_decoder import BOXES, PARTS, masked_decoder, memory
from tests.networks.masked_detector import masked_detector

CULPRITS = ("masked_anchors", "logit0", "logit1")


def fitted(folder: Path, *parts: str, **options: object) -> Result:
    """The decoder with these parts on ONNX Runtime, w8a16, measured on other samples than the calibrated ones."""
    data = {"calibration": {"memory": memory(16, seed=1)[:, 0]}, "evaluation": {"memory": memory(8, seed=2)[:, 0]}}
    settings = {"target": "ort-cpu", "precision": "w8a16", "output": folder / "run", "force": True, **data, **options}
    return dovetail.fit(masked_decoder(*parts), **settings)


def boxes_db(result: Result) -> float:
    """The SQNR of the boxes in simulation."""
    return result.metrics.sqnr_db.simulation_vs_float[BOXES] or 0.0


def test_a_repaired_decoder_is_as_accurate_as_one_without_sentinels(tmp_path: Path) -> None:
    result, twin = fitted(tmp_path, *PARTS), fitted(tmp_path)
    assert boxes_db(result) > boxes_db(twin) - 1
    assert result.verdicts["accuracy"].status is Status.PASS
    notes = [note for note in result.notes if note.startswith("range repaired")]
    assert all(any(f"{name!r}" in note for note in notes) for name in CULPRITS), notes
    assert "read by Add 'decoder/Add_7'" in " ".join(notes)
    assert not any("range" in note for note in twin.notes)


def test_without_repair_it_collapses_and_the_finding_says_how_to_keep_it(tmp_path: Path) -> None:
    result = fitted(tmp_path, *PARTS, range_repair=False)
    assert boxes_db(result) < 10
    assert result.verdicts["accuracy"].status is Status.FAIL
    assert not any(note.startswith("range repaired") for note in result.notes)
    (finding,) = [finding for finding in result.findings if finding.code == "Q508"]
    for text in ("'masked_anchors'", "1e+34", "Add 'decoder/Add_7'", "'unactivated'", "Sigmoid 'decoder/Sigmoid_8'"):
        assert text in finding.message
    words = shlex.split(finding.fix)
    keep = tuple(word for before, word in itertools.pairwise(words) if before == "--keep")
    assert boxes_db(fitted(tmp_path, *PARTS, range_repair=False, keep=keep)) > 40


def test_onnxruntime_quantization_collapses(tmp_path: Path) -> None:
    """Its QNN helper, 16-bit activations: the figure that ours is compared with in bench.ranges."""
    case = next(case for case in ranges.cases() if case.name == ranges.ALL)
    assert ranges.others_db(case, "w8a16", tmp_path) < 10


def test_boxes_times_the_size_of_the_image_need_no_repair(tmp_path: Path) -> None:
    """Every box has the same factor, so the integers are the same: only the weights of the SQNR change."""
    assert boxes_db(fitted(tmp_path, "image_size")) > boxes_db(fitted(tmp_path)) - 1.5


def test_the_shipped_detector_with_masked_anchors(tmp_path: Path) -> None:
    shipped = zoo.load("detector_scenes")
    data = {"calibration": shipped.calib(), "evaluation": {**shipped.eval(), **shipped.targets()}}
    settings = {"target": "ort-cpu", "precision": "w8a16", "metric": shipped.metric, "force": True, **data}
    means = []
    for range_repair in (True, False):
        result = dovetail.fit(masked_detector(), output=tmp_path, range_repair=range_repair, **settings)
        assert result.metrics.accuracy is not None
        means.append({name: values["map50_95"] for name, values in result.metrics.accuracy.figures.items()})
    repaired, plain = means
    assert repaired["float"] == plain["float"] > 0.7
    assert abs(repaired["simulation"] - repaired["float"]) < 0.005
    assert plain["simulation"] < 0.1


def test_a_mask_of_infinity_that_masks_a_row_is_refused_and_named(tmp_path: Path) -> None:
    """NaN of the original is never replaced by a number: calibration data that has it is refused."""
    body = "masked = Where(mask, scores, lowest)"
    model = masked_attention(body, "-inf")
    data = {name: np.ones((2, 4, 8), np.float32) for name in ("q", "k")} | {"mask": np.zeros((2, 1, 4), bool)}
    settings = {"target": "ort-cpu", "calibration": data, "output": tmp_path / "run"}
    result = dovetail.fit(model, **settings)
    assert result.failed == ("normalized",)
    with pytest.raises(InputError, match=r"activation 'masked' \(output of Where .*\) contains infinity"):
        dovetail.fit(model, range_repair=False, force=True, **settings)


def test_check_judges_masks_as_fit_sets_them(tmp_path: Path) -> None:
    onnx.save(masked_decoder(*PARTS), tmp_path / "model.onnx")
    np.savez(tmp_path / "calib.npz", memory=memory(4)[:, 0])
    findings = check_file(tmp_path / "model.onnx", open_target("ort-cpu"), calibration=tmp_path / "calib.npz")
    assert [(finding.code, finding.severity) for finding in findings] == [("Q510", Severity.NOTE)]


def test_random_data_sets_no_mask(tmp_path: Path) -> None:
    """Its ranges say nothing about real scores, so masks keep the magnitude that is enough for every model."""
    settings = {"target": "ort-cpu", "precision": "w8a16", "force": True, "output": tmp_path}
    model = masked_attention(FORMS[0], "-1e9")
    results = [dovetail.fit(model, calibration=data, **settings) for data in ("random", masked_samples())]
    names = [[record.name for record in result.passes] for result in results]
    assert ["fit_sentinels" in passes for passes in names] == [False, True]
    assert all("bound_sentinels" in passes for passes in names)
