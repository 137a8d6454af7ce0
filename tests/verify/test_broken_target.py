"""A slow target with NaN or wrong integers in its outputs: the verdict fails and names a tensor; nothing crashes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.console import Console

import dovetail
from dovetail import targets
from dovetail.backend import CompileResult, Sample
from dovetail.encoding import Array
from dovetail.finding import Thresholds
from dovetail.report.terminal import print_result
from dovetail.verify.compare import compare_runs
from dovetail.verify.target_run import TargetRun
from tests import toy_target
from tests.changed import changed

FLOATS = """<ir_version: 10, opset_import: ["": 17]>
g (float[1,16,4] x) => (float[1,16,2] y)
<float[4,2] w = {1,-2, 3,4, -5,6, 7,8}> { r = Relu(x)  y = MatMul(r, w) }"""
INTEGERS = FLOATS.replace("float[1,16,2] y", "int64[1,16] i").replace(
    "y = MatMul(r, w)", "y = MatMul(r, w) i = ArgMax <axis = 2, keepdims = 0> (y)"
)


def all_nan(output: Array) -> Array:
    return np.full_like(output, np.nan) if output.dtype.kind == "f" else output


def wrong_integers(output: Array) -> Array:
    return output if output.dtype.kind == "f" else 1 - output


def fitted(
    body: str, broken: Callable[[Array], Array], folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> dovetail.Result:
    """Fit on a toy that emulates one sample and breaks its outputs."""

    def run(compiled: CompileResult, samples: Iterable[Sample]) -> Iterator[Sample]:
        for outputs in toy_target.run(compiled, samples):
            yield {name: broken(output) for name, output in outputs.items()}

    monkeypatch.setitem(targets.FAMILIES, "toy", "tests.toy_target")
    slow = changed(toy_target.TOY, run=run, samples=1, retry_samples=2, runs_float_between=True)
    with monkeypatch.context() as patch:
        patch.setattr(toy_target, "TOY", slow)
        return _fitted(body, folder, **options)


def _fitted(body: str, folder: Path, **options: Any) -> dovetail.Result:
    onnx.save(onnx.parser.parse_model(body), folder / "model.onnx")
    samples = {"x": np.random.default_rng(0).normal(size=(8, 16, 4)).astype(np.float32)}
    arguments = {"calibration": samples, **options}
    return dovetail.fit(folder / "model.onnx", target="toy", output=folder / "run", **arguments)


def test_nan_from_an_emulated_target_is_a_failed_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = fitted(FLOATS, all_nan, tmp_path, monkeypatch)
    assert result.failed == ("numerics", "accuracy")
    assert "output 'y' is at -200.0 dB" in result.verdicts["accuracy"].reason
    reason = result.verdicts["numerics"].reason
    assert "the target's output 'y' contains NaN, the simulation's does not" in reason
    assert "the first wrong tensor is 'r', computed by Relu" in reason
    loaded = dovetail.load_result(tmp_path / "run/result.json")
    assert loaded.metrics.sqnr_db.target_vs_float == {"y": None}


def test_a_resumed_run_still_says_where_the_target_goes_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "calib.npz", x=np.random.default_rng(0).normal(size=(8, 16, 4)).astype(np.float32))
    first, second = (
        fitted(FLOATS, all_nan, tmp_path, monkeypatch, calibration=tmp_path / "calib.npz", resume=resume)
        for resume in (False, True)
    )
    assert second.verdicts["numerics"].reason == first.verdicts["numerics"].reason
    assert "the first wrong tensor is 'r'" in second.verdicts["numerics"].reason
    assert "locate" not in second.timings_s, "the build of the first run is used"


def test_wrong_integers_without_a_float_output_are_a_failed_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = fitted(INTEGERS, wrong_integers, tmp_path, monkeypatch)
    assert result.failed == ("numerics",)
    reason = result.verdicts["numerics"].reason
    assert "32 of 32 integers of 'i' differ from float" in reason
    assert "no operator was located" in reason, "every float tensor is right"


def ran(exact: Array, simulated: Array, target: Array) -> TargetRun:
    return TargetRun(
        compare_runs([{"y": exact}], [{"y": target}]),
        compare_runs([{"y": simulated}], [{"y": target}]),
        compare_runs([{"y": exact}], [{"y": simulated}]),
        [{"y": target}],
    )


@pytest.mark.parametrize(
    ("simulated", "target", "level"),
    [
        ([1.1, 0.0], [2.0, 0.0], 10.0),  # 20 dB and 0 dB
        ([1.1, 0.0], [np.nan, 0.0], -90.0),  # 20 dB and the lowest figure
        ([np.nan, 0.0], [1.0, 0.0], 60.0),
        ([1, 0], [0, 1], 60.0),
    ],
)
def test_the_level_that_a_located_tensor_is_below(simulated: list[float], target: list[float], level: float) -> None:
    dtype = np.int64 if isinstance(simulated[0], int) else np.float32
    arrays = (np.array(values, dtype) for values in ([1, 0], simulated, target))
    assert ran(*arrays).level_db(Thresholds()) == pytest.approx(level, abs=1e-4)


def test_simulation_and_target_are_shown_on_the_samples_that_the_target_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An emulator runs one of eight samples."""
    result = fitted(FLOATS, lambda output: output, tmp_path, monkeypatch)
    metrics = result.metrics
    assert (metrics.target_samples, metrics.data and metrics.data.samples) == (1, 8)
    assert metrics.sqnr_db.simulation_where_target_ran == metrics.sqnr_db.target_vs_float
    assert metrics.sqnr_db.simulation_where_target_ran != metrics.sqnr_db.simulation_vs_float
    assert metrics.sqnr_db_per_sample.simulation_vs_float["y"].samples == 1
    console = Console(record=True, width=160)
    print_result(result, tmp_path / "run", console)
    text = console.export_text()
    (row,) = [line for line in text.splitlines() if "SQNR of y" in line]
    _, simulation, target = row.rstrip("│ ").rsplit("│", 2)
    assert simulation.strip() == target.strip()
    assert "on 1 sample, those that the target ran; the simulation on all 8 is in result.json" in " ".join(text.split())
    assert "SQNR on 1 calibration sample of in-memory arrays, target" in result.verdicts["accuracy"].evidence
