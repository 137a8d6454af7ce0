"""What the rules say about ONNX Runtime on CPU, on the real runtime: Q112, Q151, Q301, Q502, Q503, Q510, Q601."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import dovetail
from dovetail.backend import Artifact
from dovetail.errors import InputError
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.targets import open_target
from tests.networks.wheels import NUDENET, fetch_or_skip
from tests.rules.cases import cases_of, head_of, write

NOT_RUN = ("rejected", "differs")
HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'


def _cases(*outcomes: str) -> list[Any]:
    """The cases whose head says that ONNX Runtime does this with them."""
    cases = [(name, text) for name, _, _, text in cases_of("ort-cpu") if head_of(text).get("compiled") in outcomes]
    assert cases
    return [pytest.param(text, id=name) for name, text in cases]


def test_every_case_is_run() -> None:
    heads = [head_of(text) for _, _, _, text in cases_of("ort-cpu")]
    assert {head["compiled"] for head in heads if "compiled" in head} == {"changed", "as planned", *NOT_RUN}


@pytest.mark.parametrize("text", _cases(*NOT_RUN))
def test_default_optimizations_fail_or_change_the_outputs(text: str, tmp_path: Path) -> None:
    """Q151: with the options that the rule names, the outputs are those without any optimization."""
    model, sample = write(text, tmp_path), np.random.default_rng(0).standard_normal(64).astype(np.float32)

    def run(options: onnxruntime.SessionOptions, disabled: Sequence[str] = ()) -> Any:
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
        )
        (value,) = session.get_inputs()
        return session.run(None, {value.name: sample[: np.prod(value.shape)].reshape(value.shape)})[0]

    plain, recommended = onnxruntime.SessionOptions(), onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    recommended.add_session_config_entry("session.disable_quant_qdq", "1")
    expected = run(plain)
    np.testing.assert_allclose(run(recommended, ["ReluQuantRewrite", "ClipQuantRewrite"]), expected, atol=1e-6)
    if head_of(text)["compiled"] == "rejected":
        with pytest.raises(Exception, match=r"INVALID_GRAPH|NOT_IMPLEMENTED|FAIL"):
            run(onnxruntime.SessionOptions())
    else:
        assert np.abs(run(onnxruntime.SessionOptions()) - expected).max() > 0.5


@pytest.mark.parametrize("text", _cases("changed", "as planned"))
def test_onnxruntime_agrees_with_the_rule(text: str, tmp_path: Path) -> None:
    """Q301: an operator that moves data runs on integers, or in float between DequantizeLinear and QuantizeLinear."""
    compiled = open_target("ort-cpu").backend.compile((Artifact("model", write(text, tmp_path)),), tmp_path)
    assert compiled.error == ""
    optimized = next(artifact.path for artifact in compiled.artifacts if artifact.name == "optimized")
    graph = onnx.shape_inference.infer_shapes(onnx.load(optimized)).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.input, *graph.output)}
    moved = [types[node.input[0]] for node in graph.node if node.op_type in DATA_MOVEMENT_OPS]
    assert moved
    in_float = onnx.TensorProto.FLOAT in moved
    assert ("changed" if in_float else "as planned") == head_of(text)["compiled"]


def quantized(values: list[float], scale: float, zero_point: int) -> list[int]:
    text = f"""{HEAD} g (float[N] x) => (uint8[N] y) <float s = {{{scale}}}, uint8 z = {{{zero_point}}}>
        {{ y = QuantizeLinear(x, s, z) }}"""
    session = onnxruntime.InferenceSession(
        onnx.parser.parse_model(text).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (integers,) = session.run(None, {"x": np.asarray(values, np.float32)})
    return [int(integer) for integer in integers]


def test_float8e5m2_runs_although_no_target_quantizes_to_it(tmp_path: Path) -> None:
    """Q112."""
    text = f"""{HEAD} g (float[4] x) => (float[4] y) <float s = {{0.5}}, float8e5m2 z = {{0}}>
        {{ q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }}"""
    model = onnx.parser.parse_model(text)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (real,) = session.run(None, {"x": np.asarray([0.0, 1.0, -1.125, 1e9], np.float32)})
    assert real.tolist() == [0.0, 1.0, -1.0, 28672.0]
    onnx.save(model, tmp_path / "model.onnx")
    assert [finding.code for finding in dovetail.check(tmp_path / "model.onnx", target="ort-cpu")] == ["Q112"]


def test_nan_becomes_the_lowest_integer_and_infinity_saturates() -> None:
    """Q502."""
    infinity = float("inf")
    assert quantized([float("nan"), infinity, -infinity, 1.0], 0.5, 3) == [0, 255, 0, 5]


def test_a_scale_of_zero_ignores_the_zero_point() -> None:
    """Q503: a tensor of zeros does not become its zero point; with the scale 1, which Dovetail uses, it does."""
    assert quantized([0.0, 1.0], 0.0, 3) == [0, 255]
    assert quantized([0.0], 1.0, 3) == [3]


def test_onnxruntime_runs_dynamic_shapes_that_fit_refuses(tmp_path: Path) -> None:
    """Q601."""
    path = tmp_path / "dynamic.onnx"
    onnx.save(onnx.parser.parse_model(f"{HEAD} g (float[N,4] x) => (float[N,4] y) {{ y = Relu(x) }}"), path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for rows in (1, 3):
        assert session.run(None, {"x": np.ones((rows, 4), np.float32)})[0].shape == (rows, 4)
    with pytest.raises(InputError, match="--shape x=1,4"):
        dovetail.fit(path, target="ort-cpu", calibration="random", output=tmp_path / "run")


def test_the_boxes_of_yolov8n_have_a_scale_of_a_pixel(tmp_path: Path) -> None:
    """Q510: ``/model.22/Mul_5`` multiplies by strides up to 32."""
    model = fetch_or_skip(NUDENET, "320n.onnx")
    findings = dovetail.check(model, target="ort-cpu", shape={"images": (1, 3, 320, 320)}, calibration="random:1")
    (finding,) = [finding for finding in findings if finding.code == "Q510"]
    assert "Mul '/model.22/Mul_5'" in finding.message
    assert finding.numbers["factor"] == 32
    assert 1.2 < finding.numbers["high"] / 255 < 1.3
