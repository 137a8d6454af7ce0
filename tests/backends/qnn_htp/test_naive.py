"""The compiler's estimates of the fitted model, float16 and the baseline ``naive``; or why one is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from rich.console import Console

import dovetail
from dovetail.backend import Estimate, Traffic
from dovetail.errors import InputError
from dovetail.report.result import Metrics
from dovetail.report.terminal import _print_estimates
from dovetail.targets.htp.chips import chip_named
from dovetail.targets.qnn_htp.estimate import read_estimate, read_traffic
from dovetail.targets.qnn_htp.naive import export_naive
from dovetail.targets.qnn_htp.options import read_options
from tests.equality import model_from, normal
from tests.networks.vit_tiny import pictures, save

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

OPTIONS = read_options(chip_named("sm8550"), {})


def quantized_dtypes(path: Path) -> set[str]:
    """The dtypes of all QuantizeLinear outputs of a model."""
    graph = onnx.load(path).graph
    types = {tensor.name: onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in graph.initializer}
    return {types[node.input[2]] for node in graph.node if node.op_type == "QuantizeLinear"}


def test_the_fitted_model_is_compared_with_float16_and_the_naive_baseline(tmp_path: Path) -> None:
    result = dovetail.fit(
        save(tmp_path, layers=1),
        target="qnn-htp:soc52",
        precision="w8a16",
        baselines="all",
        calibration={"image": pictures(2)},
        output=tmp_path / "run",
    )
    assert not result.failed
    estimates = result.metrics.latency_estimate_us
    assert list(estimates) == ["fitted", "fp16", "naive"]
    assert estimates["fitted"].mid_us < estimates["naive"].mid_us
    assert result.metrics.not_estimated == {}
    traffic = result.metrics.traffic_bytes
    assert traffic["fitted"].read_bytes < traffic["fp16"].read_bytes  # half the weights
    assert quantized_dtypes(tmp_path / "run/compile/baseline_naive/model.onnx") == {"UINT16"}
    assert dovetail.load_result(tmp_path / "run/result.json") == result


def test_a_rejected_baseline_is_reported_with_the_reason(tmp_path: Path) -> None:
    text = """
    g (float[1,8,16] x) => (float[N] picked)
    { m = MatMul(x, w)  s = Add(m, b)  [find] where = NonZero(s)  rows = Transpose(where)  picked = GatherND(s, rows) }
    """
    result = dovetail.fit(
        ir.to_proto(model_from(text, w=normal(16, 4), b=normal(4))),
        target="qnn-htp:soc52",
        precision="w8a8",
        baselines="all",
        calibration={"x": normal(4, 8, 16)},
        output=tmp_path / "run",
    )
    assert list(result.metrics.latency_estimate_us) == ["fitted", "fp16"]
    assert list(result.metrics.not_estimated) == ["naive"]
    assert "NonZero" in result.metrics.not_estimated["naive"]


def test_a_chip_without_latency_estimates_has_memory_traffic(tmp_path: Path) -> None:
    text = "g (float[1,8,16] x) => (float[1,8,4] y) { m = MatMul(x, w)  s = Add(m, b)  y = Relu(s) }"
    result = dovetail.fit(
        ir.to_proto(model_from(text, w=normal(16, 4), b=normal(4))),
        target="qnn-htp:sm8550",
        calibration={"x": normal(4, 8, 16)},
        output=tmp_path / "run",
    )
    assert result.metrics.latency_estimate_us == {}
    assert result.metrics.traffic_bytes["fitted"].read_bytes > 0
    assert result.metrics.not_estimated == {"fitted": "Performance Estimates unsupported on soc SM8550"}
    output = printed(result.metrics)
    assert "not checked" in output
    assert "no complete estimate of fitted: Performance Estimates unsupported on soc SM8550" in output


def printed(metrics: Metrics) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        _print_estimates(metrics, console)
    return capture.get()


def test_estimates_that_leave_out_different_operators_are_not_compared() -> None:
    fitted, half = Estimate(90, 100, 110, 0, 0, 0), Estimate(180, 200, 220, 0, 0, 0)
    partial = Estimate(10, 20, 30, 3, 0, 0)
    assert fitted.ratio_to(half) == 0.5
    assert fitted.ratio_to(partial) is None
    output = printed(Metrics(latency_estimate_us={"fitted": fitted, "fp16": half, "naive": partial}))
    assert "0.50x" in output
    assert "not comparable: 0 and 3 operators have no cost" in output
    assert "5.00x" not in output


ROWS = """Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier
0,BACKEND,20,US,BACKEND,SUB-EVENT,Simulated (Accelerator exec time us)
0,BACKEND,10,US,BACKEND,SUB-EVENT,Simulated (Accelerator exec time us (lower estimate))
0,BACKEND,30,US,BACKEND,SUB-EVENT,Simulated (Accelerator exec time us (upper estimate))
0,BACKEND,1,BYTES,BACKEND,SUB-EVENT,Input Fill
0,BACKEND,2,BYTES,BACKEND,SUB-EVENT,Intermediate Fill
0,BACKEND,4,BYTES,BACKEND,SUB-EVENT,Inter HTP Fill
0,BACKEND,8,BYTES,BACKEND,SUB-EVENT,Intermediate Spill
0,BACKEND,16,BYTES,BACKEND,SUB-EVENT,Inter HTP Spill
0,BACKEND,32,BYTES,BACKEND,SUB-EVENT,Output Spill
0,BACKEND,5,US,BACKEND,SUB-EVENT,Missing Ops (Number of Ops with no Costs associated)
"""


def test_a_profile_that_cannot_be_parsed_is_quoted(tmp_path: Path) -> None:
    profile = tmp_path / "profile.csv"
    assert read_estimate(profile, "") == (None, "the profile could not be read: profile.csv was not written")
    profile.write_text(ROWS)
    assert read_estimate(profile, "") == (Estimate(10, 20, 30, 5, 7, 56), "")
    profile.write_text(ROWS.replace(",10,", ",ten,"))
    bad = "0,BACKEND,ten,US,BACKEND,SUB-EVENT,Simulated (Accelerator exec time us (lower estimate))"
    assert read_estimate(profile, "") == (None, f"the profile could not be read: {bad}")
    profile.write_text(ROWS.replace("Output Spill", "Output Loss"))
    assert read_estimate(profile, "") == (None, "the profile could not be read: the row 'Output Spill' is missing")


def test_a_log_that_cannot_be_parsed_is_quoted() -> None:
    log = "[V] spill_bytes=1\n[V] fill_bytes=2\n[V] write_total_bytes=3\n[V] read_total_bytes=4\n"
    assert read_traffic(log) == (Traffic(read_bytes=4, write_bytes=3, fill_bytes=2, spill_bytes=1), "")
    assert read_traffic(log.replace("=3", "=many")) == (
        None,
        "the compiler's log could not be read: write_total_bytes=many",
    )
    missing = read_traffic(log.replace("[V] fill_bytes=2\n", ""))
    assert missing == (None, "the compiler's log could not be read: the line fill_bytes= is missing")


def test_the_naive_baseline_has_the_shapes_that_the_caller_pinned(tmp_path: Path) -> None:
    text = "g (float[N,8] x) => (float[N,4] y) { m = MatMul(x, w)  y = Relu(m) }"
    onnx.save(ir.to_proto(model_from(text, w=normal(8, 4))), tmp_path / "open.onnx")
    samples = [{"x": normal(2, 8, seed=seed)} for seed in range(2)]
    output = tmp_path / "naive.onnx"
    assert export_naive(OPTIONS, tmp_path / "open.onnx", "w8a8", samples, {"x": (2, 8)}, output) == ""
    dims = onnx.load(output).graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [2, 8]
    assert quantized_dtypes(output) == {"UINT8"}


def test_inputs_may_have_the_names_of_parameters_of_savez(tmp_path: Path) -> None:
    text = "g (float[2,8] file, float[2,8] args) => (float[2,8] y) { y = Sub(file, args) }"
    onnx.save(ir.to_proto(model_from(text)), tmp_path / "model.onnx")
    samples = [{"file": 8 * normal(2, 8, seed=seed), "args": normal(2, 8, seed=seed)} for seed in range(2)]
    output = tmp_path / "naive.onnx"
    assert export_naive(OPTIONS, tmp_path / "model.onnx", "w8a8", samples, {}, output) == ""
    scales = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(output).graph.initializer}
    assert scales["file_scale"] == pytest.approx(8 * scales["args_scale"], rel=1e-6)


def test_an_export_that_fails_returns_the_reason(tmp_path: Path) -> None:
    text = "g (float[2,8] x) => (float[2,4] y) { y = MatMul(x, w) }"
    path = tmp_path / "model.onnx"
    onnx.save(ir.to_proto(model_from(text, w=normal(8, 4))), path)
    output = tmp_path / "naive.onnx"
    unsupported = "baseline naive (onnxruntime.quantization) does not support fp16; expected one of w8a8, w8a16"
    assert export_naive(OPTIONS, path, "fp16", [], {}, output) == unsupported
    wrong = [{"x": np.zeros((3, 3), np.float32)}]
    assert export_naive(OPTIONS, path, "w8a8", wrong, {}, output).startswith(
        "baseline naive (onnxruntime.quantization) failed: "
    )
    assert not output.exists()


@pytest.mark.parametrize(
    ("target", "expected"), [("qnn-htp:soc52", "none, first, all, fp16, naive"), ("qnn-htp:sm8550", "none, first, all")]
)
def test_unknown_baselines_are_errors(target: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        dovetail.fit(
            tmp_path / "no.onnx", target=target, baselines="fp8", calibration="random", output=tmp_path / "run"
        )
    assert str(refused.value) == f"--baselines fp8: {target} has no such baseline; expected one of {expected}"
