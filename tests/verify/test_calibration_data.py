"""Calibration data that the model cannot have been trained on (Q506)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import dovetail
from dovetail import zoo
from dovetail.backend import Sample
from dovetail.calibrate.data import Data
from dovetail.finding import Finding, Severity
from dovetail.model.read import read
from dovetail.passes.normalize import normalize
from dovetail.stats import DataInfo, Stats, TensorStats
from dovetail.verify.calibration_data import check_first_layers, compare_with_held_out
from tests.equality import model_from


def scaled(name: str, factor: float) -> tuple[ir.Model, Data]:
    shipped = zoo.load(name)

    def samples() -> Iterator[Sample]:
        arrays = shipped.calib()
        for number in range(4):
            yield {key: value[number : number + 1] * np.float32(factor) for key, value in arrays.items()}

    return normalize(read(shipped.model_path, {}))[0], Data("scaled", samples)


@pytest.mark.parametrize("name", zoo.names())
def test_inputs_in_0_to_255_are_found_without_held_out_data(name: str, tmp_path: Path) -> None:
    assert check_first_layers(*scaled(name, 1), tmp_path) == ()
    findings = check_first_layers(*scaled(name, 255), tmp_path)
    assert findings
    assert {(finding.code, finding.severity) for finding in findings} == {("Q506", Severity.WARNING)}


def test_a_saturated_first_layer_is_named(tmp_path: Path) -> None:
    findings = check_first_layers(*scaled("detector_scenes", 255), tmp_path)
    assert any("Softmax 'encoder.self_attn/Softmax_out' is saturated" in finding.message for finding in findings)


@pytest.mark.parametrize("operator", ["Sigmoid(a)", "Tanh(a)", "HardSigmoid(a)", "Clip(a, low, high)"])
@pytest.mark.parametrize("factor", [1, 10_000])
def test_operators_with_limits(operator: str, factor: int, tmp_path: Path) -> None:
    limits = "<float low = {-4}, float high = {4}>" if "Clip" in operator else ""
    model = model_from(
        f"g (float[1,64] x) => (float[1,64] y) {limits} "
        f"{{ a = Neg(x)  b = {operator}  c = Neg(b)  d = Abs(c)  y = Neg(d) }}"
    )
    array = factor * np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32)
    findings = check_first_layers(model, Data("x", lambda: iter([{"x": array}])), tmp_path)
    assert len(findings) == (factor > 1)


def test_random_data_is_not_judged(tmp_path: Path) -> None:
    model, data = scaled("detector_scenes", 255)
    assert check_first_layers(model, Data("random", data.samples, random=True), tmp_path) == ()


def compared(calibrated: tuple[float, float], low: float, high: float, size: int = 64) -> tuple[Finding, ...]:
    model = model_from(f"g (float[1,{size}] x) => (float[1,{size}] y) {{ y = Neg(x) }}")
    stats = Stats({"x": TensorStats(*calibrated)}, DataInfo("calib", 4, ""))
    return compare_with_held_out(model, stats, [{"x": np.linspace(low, high, size, dtype=np.float32)[None]}] * 2)


@pytest.mark.parametrize(
    ("calibrated", "held_out", "severity"),
    [
        ((0, 255), (0, 1), Severity.ERROR),
        ((0, 1), (0, 255), Severity.ERROR),
        ((0, 1), (-1, 1), Severity.WARNING),
        ((0, 1), (0, 1.05), None),
        ((0, 1), (0.3, 0.6), None),
        ((0, 1), (1, 1), None),
    ],
)
def test_ranges_of_calibration_and_held_out_data(
    calibrated: tuple[float, float], held_out: tuple[float, float], severity: Severity | None
) -> None:
    findings = compared(calibrated, *held_out)
    assert [finding.severity for finding in findings] == ([] if severity is None else [severity])


def test_an_input_that_is_no_image_is_not_compared() -> None:
    assert compared((0, 1), 0, 640, size=4) == ()


def test_the_finding_names_both_ranges(tmp_path: Path) -> None:
    shipped = zoo.load("vit_digits")
    result = dovetail.fit(
        shipped.model_path,
        target="ort-cpu",
        calibration={"images": shipped.calib()["images"] * np.float32(255)},
        evaluation=shipped.eval(),
        output=tmp_path / "run",
    )
    findings = [finding for finding in result.findings if finding.code == "Q506"]
    assert {finding.severity for finding in findings} == {Severity.ERROR, Severity.WARNING}
    messages = " ".join(finding.message for finding in findings)
    assert "input 'images' is -207.1 to 471.4 in the calibration data, but -0.8122 to 1.848 in the held-out" in messages
    assert "constant 'pos_embed' has no effect" in messages
