"""Every capability that a target can have reaches the result, without a change in any stage: ``toy:full``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail import targets
from dovetail.backend import Backend, Runner
from dovetail.catalog import find_rule
from dovetail.errors import InputError
from dovetail.op_support import OpTable
from dovetail.target import Rewrites, Target
from dovetail.trials.decision import Decision
from tests.toy_target import TOY_WITH_EVERYTHING

ATTENTION = """
<ir_version: 10, opset_import: ["": 17]>
g (float[1,6,4] x) => (float[1,7,4] z)
<float[1,1,4] cls = {0.5, -0.5, 1, 2}, float[4,4] w = {1,-2,3,4, -5,6,7,8, 2,1,-1,3, 1,0,1,0}, float[4] b = {1,2,3,4}>
{
    r = Relu(x)
    c = Concat <axis = 1> (cls, r)
    m = MatMul(c, w)
    q = Add(m, b)
    k = Transpose <perm = [0, 2, 1]> (c)
    s = MatMul(q, k)
    p = Softmax(s)
    z = MatMul(p, c)
}
"""
QDQ = """
<ir_version: 10, opset_import: ["": 17]>
g (float[1,6,4] x, float[1,6,4] y) => (float[1,6,6] z)
<float scale = {0.05}, uint8 zero = {128}>
{
    xq = QuantizeLinear(x, scale, zero)
    xr = DequantizeLinear(xq, scale, zero)
    yq = QuantizeLinear(y, scale, zero)
    yr = DequantizeLinear(yq, scale, zero)
    t = Transpose <perm = [0, 2, 1]> (yr)
    p = MatMul(xr, t)
    pq = QuantizeLinear(p, scale, zero)
    z = DequantizeLinear(pq, scale, zero)
}
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(targets.FAMILIES, "toy", "tests.toy_target")
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(ATTENTION), path)
    return path


def fit(model: Path, **options: object) -> dovetail.Result:
    samples = {"x": np.random.default_rng(0).normal(size=(8, 6, 4)).astype(np.float32)}
    return dovetail.fit(model, target="toy:full", calibration=samples, output=model.parent / "run", **options)


def decisions(result: dovetail.Result, knob: str) -> list[Decision]:
    return [each for each in result.decisions if each.knob == knob]


def test_no_field_is_left_at_its_default() -> None:
    """What a target can have, this one has; a capability that is added has to be added here."""
    full = TOY_WITH_EVERYTHING
    bare = Target("bare", None, OpTable("bare", {}, {}), Backend(*[lambda *_: None] * 4, Runner(None)), Rewrites(()))  # type: ignore[arg-type]
    for ours, empty, without in (
        (full, bare, set()),
        (full.backend, bare.backend, {"float16_db"}),  # for targets that compute in float16
        (full.backend.runner, bare.backend.runner, {"why_not"}),  # for targets that do not run here
        (full.rewrites, bare.rewrites, set()),
    ):
        same = {name for name in ours.__slots__ if getattr(ours, name) == getattr(empty, name)}
        assert same == without


def test_its_runner_is_given_few_samples_and_its_notes_are_passed_on(model: Path) -> None:
    result = fit(model)
    assert result.metrics.target_samples == 2
    assert result.notes[0] == "run by toyrun"
    assert "compiled by toyc" in result.notes
    assert not result.failed


def test_a_failed_comparison_is_repeated_on_more_samples_and_located(model: Path) -> None:
    """A plan of the caller's own is carried out as it is: nothing is cured."""
    fit(model)
    plan = model.parent / "plan.json"
    plan.write_bytes((model.parent / "run/plan.json").read_bytes())
    result = fit(model, plan=plan, option={"wrong": "Relu"}, force=True)
    assert result.failed == ("numerics",)
    assert result.metrics.target_samples == 4
    assert "the first wrong tensor is 'r', computed by Relu 'Relu/r'" in result.verdicts["numerics"].reason
    assert not result.decisions


def test_an_operator_that_it_computes_wrongly_is_kept_in_float(model: Path) -> None:
    result = fit(model, option={"wrong": "Relu"})
    (decision,) = decisions(result, "island")
    assert (decision.place.op_type, str(decision.place), decision.taken) == ("Relu", "Relu/r", "fp32")
    assert "the first wrong tensor is 'r'" in decision.reason
    (row,) = [row for row in result.plan if row.tensor == "r" and row.edge is None]
    assert (str(row.dtype), str(row.why)) == ("float32", "measured")
    assert str(result.verdicts["numerics"].status) == "pass"


def test_a_resumed_run_with_other_held_out_data_is_judged_and_cured_anew(model: Path) -> None:
    """On data that a Relu turns to zeros a wrong one does not show; what was built then is not taken for other data."""
    random, folder = np.random.default_rng(0), model.parent
    np.savez(folder / "calib.npz", x=np.abs(random.normal(size=(8, 6, 4))).astype(np.float32))
    np.savez(folder / "silent.npz", x=-1e-6 * np.abs(random.normal(size=(4, 6, 4))).astype(np.float32))
    np.savez(folder / "telling.npz", x=0.1 + np.abs(random.normal(size=(4, 6, 4))).astype(np.float32))
    asked = {"target": "toy:full", "option": {"wrong": "Relu"}, "calibration": folder / "calib.npz"}
    first, second = (
        dovetail.fit(model, **asked, evaluation=folder / name, output=folder / "held_out", resume=resume)
        for name, resume in (("silent.npz", False), ("telling.npz", True))
    )
    assert decisions(first, "island") == []
    assert [one.taken for one in decisions(second, "island")] == ["fp32"]
    assert str(second.verdicts["numerics"].status) == "pass"


def test_estimates_stand_beside_those_of_its_baselines(model: Path) -> None:
    result = fit(model, baselines="float")
    assert result.metrics.latency_estimate_us.keys() == {"fitted", "float"}
    assert result.metrics.latency_estimate_us["fitted"].mid_us < result.metrics.latency_estimate_us["float"].mid_us
    assert result.metrics.traffic_bytes["fitted"].read_bytes == 10
    with pytest.raises(InputError, match="has no such baseline; expected one of none, first, all, float, stock"):
        fit(model, baselines="floats", force=True)


def test_latency_is_measured_beside_its_baselines_where_there_is_no_estimate(model: Path) -> None:
    result = fit(model, option={"estimate": "no"}, baselines="stock")
    measured = result.metrics.latency_measured
    assert measured is not None
    assert (measured.baseline, measured.rounds, measured.notes) == ("stock", 3, ("timed",))
    assert measured.median_us.keys() == measured.ratios.keys() == {"fitted", "stock"}
    assert result.metrics.not_estimated == {"fitted": "this chip has no estimates"}
    assert result.metrics.placement is not None
    assert [each.operation for each in result.metrics.placement.undelegated] == ["Softmax"]


def test_what_only_ships_is_packaged_once(model: Path) -> None:
    result = fit(model)
    shipped = {artifact.path: artifact.made_by for artifact in result.artifacts if artifact.shipped}
    assert shipped["compile/toy.bin"] == "toyc 1"
    assert result.metrics.size_bytes["toy.bin"] == (model.parent / "run/compile/toy.bin").stat().st_size
    assert not list((model.parent / "run").glob("stages/**/toy.bin"))


def test_its_rule_sees_its_facts(model: Path) -> None:
    (finding,) = [finding for finding in fit(model).findings if finding.code == "Q199"]
    assert (finding.place.op_type, finding.place.tensor) == ("Softmax", "p")
    assert [each.code for each in dovetail.check(model, target="toy:full") if each.code == "Q199"] == ["Q199"]
    assert find_rule("q199").summary == "A Softmax runs outside the toy's backend."


def test_its_rewrites_are_in_the_result(model: Path) -> None:
    (record,) = [each for each in fit(model).passes if each.name == "linear_as_gemm"]
    assert record.changed


def test_its_rewrites_of_a_quantized_model_come_before_the_scales_are_read(model: Path) -> None:
    onnx.save(onnx.parser.parse_model(QDQ), model)
    samples = {name: np.random.default_rng(0).normal(size=(4, 6, 4)).astype(np.float32) for name in "xy"}
    result = dovetail.repair(model, target="toy:full", calibration=samples, output=model.parent / "run")
    (record,) = [each for each in result.passes if each.name == "transpose_before_quantize"]
    assert [site.where for site in record.changed] == ["t"]
    kept = {row.original_name: row.scale for row in result.plan if str(row.scale_from) == "given"}
    assert kept == {name: pytest.approx(0.05) for name in ("x", "y", "y/Transpose", "z")}


def test_its_knobs_decide_and_say_so(model: Path) -> None:
    result = fit(model, precision="auto")
    (precision,) = decisions(result, "precision")
    assert {each.label for each in precision.alternatives} == {"w8a8", "w8a16"}
    assert all({"target_sqnr_db", "latency_us", "time_ratio"} <= each.figures.keys() for each in precision.alternatives)
    (merge,) = decisions(result, "merges")
    assert {each.label for each in merge.alternatives} == {"one range for all inputs", "float"}


def test_the_width_of_operands_is_weighed_by_the_estimate(model: Path) -> None:
    together, *each = decisions(fit(model, precision="w8a16"), "operands")
    assert together.is_whole
    assert len(each) == 2
    for decision in each:
        wide, narrow = decision.alternatives
        assert (wide.label, narrow.label) == ("int16", "uint8")
        assert narrow.figures["saved_us"] == 1.0, "one byte less is read"


def test_its_device_is_given_files_and_read_back(model: Path) -> None:
    run = model.parent / "run"
    assert str(fit(model).verdicts["device"].status) == "not_checked"
    assert (run / "device/inputs.json").read_text() == '["x"]'
    subprocess.run([sys.executable, str(run / "device/run_on_device.py")], check=True, capture_output=True)
    result = dovetail.verify_device(run, device_outputs=run / "device/outputs")
    assert str(result.verdicts["device"].status) == "pass"
    assert result.metrics.latency_device is not None
    assert (result.metrics.latency_device.latency_us, result.metrics.latency_device.source) == (9.0, "toytime")
    assert "on the device: timed by toytime" in result.notes
