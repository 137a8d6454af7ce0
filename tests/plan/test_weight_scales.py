"""Weight scales below what a target computes correctly are raised, per channel, and the plan says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import dovetail
from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.model.edit import constant_of
from dovetail.numerics.affine import fake_quantize, quantize
from dovetail.op_support import W8A8, W8A16, Precision
from dovetail.passes.as_float16 import SMALLEST_NORMAL
from dovetail.plan.imported_qparams import ImportedQParams
from dovetail.plan.make import make_plan
from dovetail.plan.request import Request
from dovetail.plan.rows import read_plan, write_plan
from dovetail.qdq.emit import emit_qdq
from dovetail.storage import Choice, Plan, ScaleSource
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.targets.ort_cpu.target import ORT_CPU
from dovetail.targets.tensorrt.table import FP8
from tests.planning import graph, noise, observe, planned

# One channel of three is nearly dead, one is exactly zero.
WEIGHT = "float[3,2,1,1] w = {0.5, -0.25, 1e-9, 2e-9, 0, 0}, float[3] b = {0.1, 0, 0.3}"
CONV = f"g (float[1,2,4,4] x) => (float[1,3,4,4] z) <{WEIGHT}> {{ y = Conv(x, w, b)  z = Neg(y) }}"


@pytest.fixture
def htp() -> Target:
    return open_target("qnn-htp:sm8550")


def conv(model: ir.Model) -> str:
    return next(node.name or "" for node in model.graph if node.op_type == "Conv")


def weight_of(plan: Plan, model: ir.Model) -> tuple[Choice, QParams]:
    choice = plan.edges[Edge(conv(model), 1)]
    assert isinstance(choice.storage, QParams)
    return choice, choice.storage


def scale_of(plan: Plan, tensor: str) -> float:
    storage = plan.tensors[tensor].storage
    assert isinstance(storage, QParams)
    return float(storage.scale)


def test_a_channel_is_raised_to_what_htp_requantizes_correctly(htp: Target) -> None:
    model = graph(CONV)
    plan = planned(model, htp, W8A16)
    choice, weight = weight_of(plan, model)
    ratio = scale_of(plan, "x") * weight.scale.astype(np.float64) / scale_of(plan, "y")
    assert ratio[1] == pytest.approx(2**-21, rel=1e-6)
    assert weight.scale[0] == pytest.approx(0.5 / 127)
    assert choice.raised_channels == 1
    assert choice.detail.startswith("Conv weight, int8 per channel on axis 0; range of its values, scales of 1 of 3 ")
    assert choice.detail.endswith("the smallest that the target computes correctly")


def test_8_bit_kernels_have_no_limit(htp: Target) -> None:
    model = graph(CONV)
    choice, weight = weight_of(planned(model, htp, W8A8), model)
    assert choice.raised_channels == 0
    assert weight.scale[1] == pytest.approx(2e-9 / 127)


@pytest.mark.parametrize("target", ["ort-cpu", "qnn-htp:sm8550"])
@pytest.mark.parametrize("precision", [W8A8, W8A16])
def test_the_bias_of_a_channel_of_zeros_is_not_rounded_away(target: str, precision: Precision) -> None:
    """Any scale represents zeros; with the scale 1 the step of the bias would be that of the input."""
    model = graph(CONV.replace("0.5, -0.25", "5e-4, 2e-4").replace("0.1, 0, 0.3", "1e-4, 0, 3e-4"))
    plan = planned(model, open_target(target), precision)
    bias = plan.edges[Edge(conv(model), 2)].storage
    assert isinstance(bias, QParams)
    assert fake_quantize(np.float32([1e-4, 0, 3e-4]), bias)[2] == pytest.approx(3e-4, rel=1e-4)


def test_integers_and_bias_follow_the_raised_scale(htp: Target) -> None:
    model = graph(CONV)
    plan = planned(model, htp, W8A16)
    _, weight = weight_of(plan, model)
    bias = plan.edges[Edge(conv(model), 2)].storage
    assert isinstance(bias, QParams)
    np.testing.assert_array_equal(bias.scale, np.float32(scale_of(plan, "x")) * weight.scale)
    emitted = {node.name: node for node in emit_qdq(model, plan).graph}
    real = {index: constant_of(model.graph.initializers[name]) for index, name in ((1, "w"), (2, "b"))}
    for index, params in ((1, weight), (2, bias)):
        dequantize = emitted[conv(model)].inputs[index].producer()
        np.testing.assert_array_equal(constant_of(dequantize.inputs[0]), quantize(real[index], params))


def test_a_target_without_a_limit_raises_nothing() -> None:
    model = graph(CONV)
    choice, weight = weight_of(planned(model, ORT_CPU, W8A8), model)
    assert (choice.raised_channels, "raised" in choice.detail) == (0, False)
    assert weight.scale[1] == pytest.approx(2e-9 / 127)


def test_scales_that_are_large_enough_are_not_touched(htp: Target) -> None:
    model = graph(CONV.replace("1e-9, 2e-9", "0.1, 0.2"))
    choice, weight = weight_of(planned(model, htp, W8A16), model)
    assert choice.raised_channels == 0
    np.testing.assert_allclose(weight.scale[:2], [0.5 / 127, 0.2 / 127])


@pytest.mark.parametrize("compute", ["fp16", "fp32"])
def test_scales_are_normal_in_float16_where_that_is_their_type(compute: str) -> None:
    body = "g (float[1,4] x) => (float[1,2] y) <float[4,2] w = {1,1e-4,1,1e-4,1,1e-4,1,1e-4}> { y = MatMul(x, w) }"
    model = graph(body)
    target = open_target("tensorrt:sm89", {"compute": compute})
    plan = planned(model, target, FP8, data=noise(model, scale=1e-3))
    scales = {edge.index: choice.storage.scale for edge, choice in plan.edges.items()}
    assert bool(scales[1][1] == SMALLEST_NORMAL) is bool(scales[0] == SMALLEST_NORMAL) is (compute == "fp16")
    assert scales[1][0] == pytest.approx(1 / 448)


def test_an_imported_scale_is_raised_visibly(htp: Target) -> None:
    model = graph(CONV)
    given = weight_of(planned(model, ORT_CPU, W8A8), model)[1]
    imported = ImportedQParams({}, {}, {"w": (given,)})
    stats = observe(model, htp, noise(model))
    choice, weight = weight_of(make_plan(model, htp.table, stats, Request(W8A16), imported), model)
    assert (choice.raised_channels, choice.scale_from) == (1, ScaleSource.GIVEN_CHANGED)
    assert choice.detail.startswith("Conv weight, int8 per channel on axis 0; scale and zero point from the input")
    np.testing.assert_array_equal(weight.scale[0], given.scale[0])


def test_the_number_of_channels_is_written_with_the_plan(htp: Target, tmp_path: Path) -> None:
    model = graph(CONV)
    (path,) = write_plan(planned(model, htp, W8A16), model, tmp_path / "plan.json")
    assert weight_of(read_plan(path), model)[0].raised_channels == 1


def test_the_result_says_how_many_channels_were_raised(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    ir.save(graph(CONV.replace("0.1, 0, 0.3", "0.1, 100, 0.3")), path)
    result = dovetail.fit(path, target="ort-cpu", calibration={"x": noise(graph(CONV))["x"]}, output=tmp_path / "run")
    (note,) = (note for note in result.notes if "raised" in note)
    assert note.startswith("the scales of 1 channels in 1 weights were raised, because the target would")


def test_a_tensor_of_zeros_has_a_range_of_one_so_that_a_bias_behind_it_is_not_rounded_away(htp: Target) -> None:
    model = graph("g (float[1,2,4,4] x) => (float[1,2,4,4] y) { y = Neg(x) }")
    plan = planned(model, htp, W8A16, data={"x": np.zeros((2, 1, 2, 4, 4), np.float32)})
    assert scale_of(plan, "x") == pytest.approx(1 / 65535)
    assert "only zeros were observed" in plan.tensors["x"].detail


def test_the_bias_of_a_depthwise_transposed_convolution_has_one_scale_as_its_weight(htp: Target) -> None:
    constants = "float[2,1,1,1] w = {0.5, 2}, float[2] b = {1, -3}"
    text = f"g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{constants}> {{ y = ConvTranspose<group=2>(x, w, b) }}"
    model = graph(text)
    plan = planned(model, htp, W8A16)
    node = next(node.name or "" for node in model.graph)
    weight, bias = (plan.edges[Edge(node, index)].storage for index in (1, 2))
    assert isinstance(weight, QParams)
    assert isinstance(bias, QParams)
    assert weight.scale.shape == (1,)
    assert bias.scale.shape == ()
    assert float(bias.scale) == pytest.approx(scale_of(plan, "x") * float(weight.scale[0]), rel=1e-6)
