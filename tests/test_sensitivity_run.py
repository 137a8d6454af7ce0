"""``dovetail.sensitivity``: whole runs from Python."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.backend import Sample
from dovetail.trials.sensitivity.subjects import Level, Part
from dovetail.zoo import load

_HEADER = '<ir_version: 10, opset_import: ["": 21]> '
_WEIGHTS = "<float[4,4] w = {1,-2,3,4,5,6,-7,8,2,3,4,5,-6,7,8,9}, float[4,2] v = {1,2,3,4,5,6,7,8}>"
_MODEL = f"g (float[1,4] x) => (float[1,2] y) {_WEIGHTS} {{ a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, v) }}"
_BATCH = f"""g (float[4,4] x) => (float[4,2] y, float[1,1] s) {_WEIGHTS}
{{ a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, v)  s = ReduceMean<keepdims=1>(y) }}"""


def _data(count: int, seed: int, rows: int = 1) -> dict[str, np.ndarray]:
    shape = (count, 4) if rows > 1 else (count, 1, 4)
    return {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


def _run(tmp_path: Path, body: str = _MODEL, **options: Any) -> dovetail.SensitivityResult:
    values = {"target": "ort-cpu", "calibration": _data(6, 0), "output": tmp_path / "out", **options}
    return dovetail.sensitivity(onnx.parser.parse_model(_HEADER + body), **values)


def best_class(outputs: Iterator[Sample], labels: Iterator[Sample]) -> dict[str, float]:
    """Named values: the share of right classes first, then how many samples there were."""
    right = [
        int(output["y"].argmax() == np.ravel(label["class"])[0]) for output, label in zip(outputs, labels, strict=True)
    ]
    return {"right": float(np.mean(right)), "samples": float(len(right))}


def largest_error(outputs: Iterator[Sample], labels: Iterator[Sample]) -> dict[str, float]:
    """An error of a classification that is far from every decision: only SQNR differs."""
    return {"error": max(float(np.abs(output["y"]).max()) for output, _ in zip(outputs, labels, strict=True))}


def test_the_result_and_its_files(tmp_path: Path) -> None:
    result = _run(tmp_path)
    assert dovetail.load_sensitivity(tmp_path / "out/sensitivity.json") == result
    assert (tmp_path / "out/sensitivity.csv").read_bytes() == result.to_csv()
    assert [(row.part, row.whole) for row in result.at(Level.MODEL)] == [
        (Part.BOTH, True),
        (Part.WEIGHTS, False),
        (Part.ACTIVATIONS, False),
    ]
    whole, weights, activations = result.at(Level.MODEL)
    assert whole.sqnr_db < min(weights.sqnr_db, activations.sqnr_db) + 1
    assert (result.held_out, result.data.samples, result.ranked_by) == (False, 6, "sqnr_db")
    assert not any(row.estimated for row in result.rows)
    assert result.notes == ()
    again = _run(tmp_path, output=tmp_path / "again")
    assert again.rows == result.rows


def test_the_whole_model_costs_what_fit_measures(tmp_path: Path) -> None:
    evaluation = _data(5, 1)
    result = _run(tmp_path, evaluation=evaluation, samples=5)
    fitted = dovetail.fit(
        onnx.parser.parse_model(_HEADER + _MODEL),
        target="ort-cpu",
        calibration=_data(6, 0),
        evaluation=evaluation,
        output=tmp_path / "fit",
    )
    spread = fitted.metrics.sqnr_db_per_sample
    assert result.rows[0].sqnr_db == pytest.approx(spread.simulation_vs_float["y"].mean_db, abs=0.05)


def test_samples_count_samples_and_not_calls_of_a_batch(tmp_path: Path) -> None:
    result = _run(tmp_path, _BATCH, calibration=_data(16, 0, rows=4), samples=5)
    assert result.data.samples == 8
    assert {row.output for row in result.rows} <= {"y", "s"}
    fewer = _run(tmp_path, _BATCH, calibration=_data(8, 0, rows=4), samples=12, force=True)
    assert fewer.data.samples == 8
    assert "only 8 samples" in fewer.notes[0]
    estimated = _run(tmp_path, _BATCH, calibration=_data(8, 0, rows=4), first_order=True, force=True)
    assert len(estimated.rows) == len(fewer.rows)


def test_the_metric_is_computed_on_held_out_samples_and_ranks_the_rows(tmp_path: Path) -> None:
    labels = np.zeros((40,), np.int64)
    evaluation = {**_data(40, 1), "class": labels}
    seen: list[tuple[str, int, int | None]] = []
    result = _run(
        tmp_path,
        evaluation=evaluation,
        metric=best_class,
        report=lambda stage, done, total: seen.append((stage, done, total)),
    )
    assert (result.held_out, result.data.samples, result.metric_samples) == (True, 16, 40)
    assert result.ranked_by == "right"
    assert result.float_figures["samples"] == 40.0
    for row in result.rows:
        assert row.drop == pytest.approx(result.float_figures["right"] - row.figures["right"])
    operators = sorted((row for row in result.at(Level.OPERATOR) if row.whole), key=lambda row: row.rank)
    drops = [row.drop for row in operators]
    assert all(a is not None and b is not None and a >= b - 1 / 40 - 1e-9 for a, b in itertools.pairwise(drops))
    for stage in ("sensitivity", "metric"):
        counts = [(done, total) for name, done, total in seen if name == stage and total is not None]
        assert [done for done, _ in counts] == list(range(len(counts)))
        assert {total for _, total in counts} == {len(counts)}
    limited = _run(tmp_path, evaluation=evaluation, metric=best_class, samples=3, force=True)
    assert (limited.data.samples, limited.metric_samples, limited.float_figures["samples"]) == (3, 3, 3.0)


def test_an_error_ranks_by_its_rise(tmp_path: Path) -> None:
    largest_error.lower_is_better = True  # type: ignore[attr-defined]
    result = _run(tmp_path, evaluation=_data(4, 1), metric=largest_error)
    assert result.lower_is_better == ("error",)
    row = result.rows[0]
    assert row.drop == pytest.approx(row.figures["error"] - result.float_figures["error"])


def test_what_the_target_adds_to_the_plan_is_said(tmp_path: Path) -> None:
    """Weights only: XNNPACK quantizes the input of a layer at run time, which belongs to no scale of the plan."""
    result = _run(tmp_path, target="xnnpack", precision="w8a8-dynamic")
    assert {row.part for row in result.rows} == {Part.WEIGHTS}
    assert "the graph that is emitted for the target has" in result.notes[0]


def test_kept_operators_are_not_measured(tmp_path: Path) -> None:
    result = _run(tmp_path, keep=("b=fp32",))
    assert all("b" not in row.keep for row in result.rows)


@pytest.mark.parametrize("name", ["vit_digits"])
def test_keep_takes_what_a_row_says(name: str, tmp_path: Path) -> None:
    shipped = load(name)
    images = {shipped.input_name: shipped.calib()[shipped.input_name][:2]}
    result = dovetail.sensitivity(
        shipped.model_path, target="ort-cpu", calibration=images, output=tmp_path / "out", first_order=True, samples=1
    )
    whole = [row for row in result.at(Level.OPERATOR) if row.whole]
    assert sum(row.estimated for row in whole) == len(whole) - 30
    keep = [f"{name}=fp32" for row in whole[::7] for name in row.keep]
    kept = dovetail.sensitivity(
        shipped.model_path,
        target="ort-cpu",
        calibration=images,
        output=tmp_path / "kept",
        keep=tuple(keep),
        first_order=True,
        samples=1,
    )
    assert len(kept.rows) < len(result.rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "--samples 0: expected a whole number"),
        ({"samples": -3}, "--samples -3: expected a whole number"),
        ({"target": "xnnpack", "precision": "auto"}, "--precision auto: .* expected one of w8a8"),
        ({"precision": "fp32"}, "--precision fp32: .* expected one of w8a8"),
        ({"rounding": "second-order"}, "--rounding second-order is not supported here"),
        ({"precision": "w9"}, "unknown precision 'w9'"),
        ({"metric": best_class}, "a metric requires held-out data"),
        ({"evaluation": _data(6, 0)}, "sample 0 is also in the calibration data"),
        ({"keep": ("nothing*=fp32",)}, "nothing"),
        ({"keep": ("*=fp32",)}, "quantizes nothing of it"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_left(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(dovetail.InputError, match=message):
        _run(tmp_path, **options)
    assert not (tmp_path / "out").exists()


def test_a_tail_that_the_target_cannot_run(tmp_path: Path) -> None:
    """The metric gets the outputs of the whole model, SQNR is of what the head computes."""
    body = f"""g (float[1,4] x) => (float[1,2] y, int64[2,n] i) {_WEIGHTS}
    {{ a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, v)  i = NonZero(y) }}"""

    def count(outputs: Iterator[Sample], labels: Iterator[Sample]) -> dict[str, float]:
        return {"chosen": float(sum(output["i"].shape[1] for output in outputs))}

    target = {"target": "qnn-htp:sm8550", "precision": "w8a16"}
    result = _run(tmp_path, body, **target, evaluation=_data(5, 1), metric=count)
    chosen = result.float_figures["chosen"]
    assert chosen is not None
    assert chosen > 0
    assert "cannot run the end of the model" in result.notes[0]
    assert (tmp_path / "out/tail.onnx").is_file()


def test_an_existing_directory_needs_force(tmp_path: Path) -> None:
    _run(tmp_path)
    before = (tmp_path / "out/sensitivity.json").read_bytes()
    with pytest.raises(dovetail.InputError, match="--force"):
        _run(tmp_path)
    with pytest.raises(dovetail.InputError, match="nothing"):
        _run(tmp_path, keep=("nothing*=fp32",), force=True)
    assert (tmp_path / "out/sensitivity.json").read_bytes() == before


def test_a_model_without_a_float_output_needs_a_metric(tmp_path: Path) -> None:
    body = f"g (float[1,4] x) => (int64[1,1] i) {_WEIGHTS} {{ a = MatMul(x, w)  b = Relu(a)  i = ArgMax<axis=1>(b) }}"
    with pytest.raises(dovetail.InputError, match="no output is float"):
        _run(tmp_path, body)
    result = _run(
        tmp_path,
        body,
        evaluation={**_data(5, 1), "class": np.zeros(5, np.int64)},
        metric=lambda outputs, labels: {"first": float(np.mean([output["i"][0, 0] == 0 for output in outputs]))},
    )
    assert result.ranked_by == "first"
