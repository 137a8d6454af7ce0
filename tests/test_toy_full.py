"""Every capability of a target has its effect in the result, without a change to any stage: ``toy:full``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail import targets
from dovetail.backend import Backend, Outcome, Runner
from dovetail.catalog import find_rule
from dovetail.device.verify_converted import verify_converted
from dovetail.errors import InputError
from dovetail.finding import Status
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
    return [decision for decision in result.decisions if decision.knob == knob]


def test_no_field_is_left_at_its_default() -> None:
    """This target has all that a target can have; a new capability must be added to it."""
    full = TOY_WITH_EVERYTHING
    bare = Target("bare", None, OpTable("bare", {}, {}), Backend(*[lambda *_: None] * 4, Runner(None)), Rewrites(()))  # type: ignore[arg-type]
    for record, empty, exceptions in (
        (full, bare, set()),
        # for targets that compute in float16, and for those whose latency is not known
        (full.backend, bare.backend, {"float16_db", "no_latency"}),
        (full.backend.runner, bare.backend.runner, {"why_not"}),  # for targets that cannot run on this machine
        (full.rewrites, bare.rewrites, set()),
    ):
        same = {name for name in record.__slots__ if getattr(record, name) == getattr(empty, name)}
        assert same == exceptions


def test_its_runner_gets_few_samples_and_its_notes_are_in_the_result(model: Path) -> None:
    result = fit(model)
    assert result.metrics.target_samples == 2
    assert result.notes[0] == "run by toyrun"
    assert "compiled by toyc" in result.notes
    assert "toyc read model.onnx" in result.notes
    assert not result.failed


def test_a_failed_comparison_is_repeated_on_more_samples_and_located(model: Path) -> None:
    """A plan of the caller is used as it is: no workaround is tried."""
    fit(model)
    plan = model.parent / "plan.json"
    plan.write_bytes((model.parent / "run/plan.json").read_bytes())
    result = fit(model, plan=plan, option={"wrong": "Relu"}, force=True)
    assert result.failed == ("numerics", "accuracy")
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


def test_a_resumed_run_with_other_held_out_data_is_verified_again_and_gets_its_own_workaround(model: Path) -> None:
    """A wrong Relu has no effect on data that a Relu sets to zero; that build is not reused for other data."""
    random, folder = np.random.default_rng(0), model.parent
    np.savez(folder / "calib.npz", x=np.abs(random.normal(size=(8, 6, 4))).astype(np.float32))
    np.savez(folder / "negative.npz", x=-1e-6 * np.abs(random.normal(size=(4, 6, 4))).astype(np.float32))
    np.savez(folder / "positive.npz", x=0.1 + np.abs(random.normal(size=(4, 6, 4))).astype(np.float32))
    arguments = {"target": "toy:full", "option": {"wrong": "Relu"}, "calibration": folder / "calib.npz"}
    first, second = (
        dovetail.fit(model, **arguments, evaluation=folder / name, output=folder / "held_out", resume=resume)
        for name, resume in (("negative.npz", False), ("positive.npz", True))
    )
    assert decisions(first, "island") == []
    assert [decision.taken for decision in decisions(second, "island")] == ["fp32"]
    assert str(second.verdicts["numerics"].status) == "pass"


def test_estimates_are_compared_with_those_of_its_baselines(model: Path) -> None:
    result = fit(model, baselines="float")
    assert result.metrics.latency_estimate_us.keys() == {"fitted", "float"}
    assert result.metrics.latency_estimate_us["fitted"].mid_us < result.metrics.latency_estimate_us["float"].mid_us
    assert result.metrics.traffic_bytes["fitted"].read_bytes == 10
    with pytest.raises(InputError, match="has no such baseline; expected one of none, first, all, float, stock"):
        fit(model, baselines="floats", force=True)


def test_latency_is_measured_with_its_baselines_if_there_is_no_estimate(model: Path) -> None:
    result = fit(model, option={"estimate": "no"}, baselines="stock")
    measured = result.metrics.latency_measured
    assert measured is not None
    assert (measured.baseline, measured.rounds, measured.notes) == ("stock", 3, ("timed",))
    assert measured.median_us.keys() == measured.ratios.keys() == {"fitted", "stock"}
    assert result.metrics.not_estimated == {"fitted": "this chip has no estimates"}
    assert result.metrics.placement is not None
    assert [op.operation for op in result.metrics.placement.undelegated] == ["Softmax"]


def test_only_the_shipped_build_is_packaged(model: Path) -> None:
    result = fit(model)
    shipped = {artifact.path: artifact.made_by for artifact in result.artifacts if artifact.shipped}
    assert shipped["compile/toy.bin"] == "toyc 1"
    assert result.metrics.size_bytes["toy.bin"] == (model.parent / "run/compile/toy.bin").stat().st_size
    assert not list((model.parent / "run").glob("stages/**/toy.bin"))


def test_its_rule_reads_its_facts(model: Path) -> None:
    (finding,) = [finding for finding in fit(model).findings if finding.code == "Q199"]
    assert (finding.place.op_type, finding.place.tensor) == ("Softmax", "p")
    codes = [finding.code for finding in dovetail.check(model, target="toy:full")]
    assert codes.count("Q199") == 1
    assert find_rule("q199").summary == "A Softmax runs outside the toy's backend."


def test_its_rewrites_are_in_the_result(model: Path) -> None:
    (record,) = [record for record in fit(model).passes if record.name == "linear_to_gemm"]
    assert record.changed


def test_its_rewrites_of_a_quantized_model_come_before_the_scales_are_read(model: Path) -> None:
    onnx.save(onnx.parser.parse_model(QDQ), model)
    samples = {name: np.random.default_rng(0).normal(size=(4, 6, 4)).astype(np.float32) for name in "xy"}
    result = dovetail.repair(model, target="toy:full", calibration=samples, output=model.parent / "run")
    (record,) = [record for record in result.passes if record.name == "transpose_before_quantize"]
    assert [site.where for site in record.changed] == ["t"]
    kept = {row.original_name: row.scale for row in result.plan if str(row.scale_from) == "given"}
    assert kept == {name: pytest.approx(0.05) for name in ("x", "y", "y/Transpose", "z")}


def test_its_knobs_decide_and_are_recorded(model: Path) -> None:
    result = fit(model, precision="auto")
    (precision, *_) = decisions(result, "mixed")
    assert {"w8a8", "w8a16"} <= {alternative.label for alternative in precision.alternatives}
    assert any("estimate_us" in alternative.figures for alternative in precision.alternatives)
    (merge,) = decisions(result, "merges")
    assert {alternative.label for alternative in merge.alternatives} == {"one range for all inputs", "float"}


def test_without_estimates_plans_are_compared_by_measured_time(model: Path) -> None:
    (whole, *_) = decisions(fit(model, precision="auto", option={"estimate": "no"}, max_latency=1e9), "mixed")
    timed = [alternative.figures for alternative in whole.alternatives if "latency_us" in alternative.figures]
    assert len(timed) > 1
    assert all(figures["latency_ratio"] > 0 and "estimate_us" not in figures for figures in timed)


def test_the_width_of_operands_is_chosen_by_the_estimate(model: Path) -> None:
    whole_model, *per_operand = decisions(fit(model, precision="w8a16"), "operands")
    assert whole_model.is_whole
    assert len(per_operand) == 2
    for decision in per_operand:
        wide, narrow = decision.alternatives
        assert (wide.label, narrow.label) == ("int16", "uint8")
        assert narrow.figures["saved_us"] == 1.0, "one byte less is read"


def test_its_device_folder_is_written_and_its_outputs_are_read(model: Path) -> None:
    run = model.parent / "run"
    assert str(fit(model).verdicts["device"].status) == "not_checked"
    assert (run / "device/inputs.json").read_text() == '["x"]'
    subprocess.run([sys.executable, str(run / "device/run_on_device.py")], check=True, capture_output=True)
    result = dovetail.verify_device(run, device_outputs=run / "device/outputs")
    assert str(result.verdicts["device"].status) == "pass"
    assert result.metrics.latency_device is not None
    assert (result.metrics.latency_device.latency_us, result.metrics.latency_device.source) == (9.0, "toytime")
    assert "on the device: timed by toytime" in result.notes


def test_what_its_converter_wrote_is_compared_with_the_plan(model: Path, tmp_path: Path) -> None:
    fit(model)
    run = model.parent / "run"
    as_planned = verify_converted(run, [run / "toy.onnx"])
    assert as_planned.verdicts["fidelity"].status is Status.PASS
    assert "the converter's output: written by toyconvert" in as_planned.notes
    other = onnx.load(run / "toy.onnx")
    reader = next(node for node in other.graph.node if node.op_type == "DequantizeLinear")
    scale = next(constant for constant in other.graph.initializer if constant.name == reader.input[1])
    scale.CopyFrom(onnx.numpy_helper.from_array(2 * onnx.numpy_helper.to_array(scale), scale.name))
    onnx.save(other, tmp_path / "converted.onnx")
    changed = verify_converted(run, [tmp_path / "converted.onnx"])
    assert changed.verdicts["fidelity"].status is Status.FAIL
    assert any(row.outcome is Outcome.CHANGED for row in changed.read_back)
