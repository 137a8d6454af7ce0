"""What the planner decides, and the reason that it records."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.edge import Edge
from dovetail.encoding import DType, Granularity, QParams
from dovetail.errors import InputError
from dovetail.model.session import Mode
from dovetail.op_support import FP16, FP32, W8A8, W8A16
from dovetail.plan.make import make_plan
from dovetail.plan.request import Pins, Request
from dovetail.qdq.emit import emit_qdq
from dovetail.storage import FloatStorage, Reason
from dovetail.targets import open_target
from dovetail.targets.ort_cpu.target import ORT_CPU
from dovetail.verify.run import SessionRun
from tests.networks.small_graphs import LINEAR
from tests.planning import graph, noise, observe, planned
from tests.toy_target import TOY


def node_of(model: object, output: str) -> str:
    return next(n.name for n in model.graph if n.outputs[0].name == output)  # type: ignore[attr-defined]


def test_layout_operators_share_qparams_and_the_plan_names_the_group() -> None:
    model = graph(LINEAR)
    plan = planned(model, TOY)
    h, t, u = (plan.tensors[name] for name in ("h", "t", "u"))
    assert h.storage == t.storage == u.storage
    assert h.group == t.group == u.group == "h"
    assert plan.tensors["x"].group is None


def test_chain_interior_is_not_quantized_and_its_bias_scale_is_derived() -> None:
    model = graph(LINEAR)
    plan = planned(model, TOY)
    assert plan.tensors["m"].storage == FloatStorage()
    assert plan.tensors["m"].why is Reason.INTERIOR
    weight = plan.edges[Edge(node_of(model, "m"), 1)].storage
    bias = plan.edges[Edge(node_of(model, "h"), 1)].storage
    source = plan.tensors["x"].storage
    assert isinstance(weight, QParams)
    assert isinstance(bias, QParams)
    assert isinstance(source, QParams)
    assert (weight.dtype, weight.axis, weight.encoding.granularity) == (DType.S8, 1, Granularity.AXIS)
    assert bias.dtype is DType.S32
    np.testing.assert_array_equal(bias.scale, source.scale * weight.scale)


def test_graph_outputs_stay_float_unless_io_is_quantized() -> None:
    model = graph(LINEAR)
    assert planned(model, ORT_CPU).tensors["z"].storage == FloatStorage()
    assert planned(model, ORT_CPU, quantized_io=True).tensors["z"].storage.dtype is DType.U8


def test_keep_pins_by_original_tensor_and_node_name() -> None:
    model = graph(LINEAR)
    by_tensor = planned(model, ORT_CPU, keep={"h": FP32})
    assert by_tensor.tensors["h"].storage == FloatStorage()
    assert (by_tensor.tensors["h"].why, by_tensor.tensors["h"].detail) == (Reason.PINNED, "--keep h=fp32")
    assert by_tensor.tensors["u"].storage == FloatStorage()  # in the same sharing group
    name = node_of(model, "z")
    by_node = planned(model, ORT_CPU, keep={name: FP32})
    assert by_node.edges[Edge(name, 1)].storage == FloatStorage()
    assert by_node.tensors["r"].storage.dtype is DType.U8


def test_keep_at_16_bit_converts_without_loss_on_the_edge() -> None:
    model = graph(LINEAR)
    name = node_of(model, "z")
    plan = planned(model, ORT_CPU, keep={name: W8A16}, quantized_io=True)
    narrow, wide = plan.tensors["r"].storage, plan.edges[Edge(name, 0)].storage
    assert isinstance(narrow, QParams)
    assert isinstance(wide, QParams)
    assert (narrow.dtype, wide.dtype) == (DType.U8, DType.U16)
    np.testing.assert_array_equal(wide.zero_point, narrow.zero_point * 257)
    np.testing.assert_allclose(wide.scale * 257, narrow.scale, rtol=1e-6)


def test_keep_that_matches_nothing_is_refused() -> None:
    with pytest.raises(InputError, match=r"--keep nothing\*=fp32: no tensor or node name matches 'nothing\*'"):
        planned(graph(LINEAR), ORT_CPU, keep={"nothing*": FP32})


CONCAT = """
g (float[1,4] x, float[1,4] y) => (float[1,8] z)
{
    a = Relu(x)
    c = Concat <axis = 1> (a, y)
    d = Relu(c)
    e = Relu(a)
    f = Concat <axis = 1> (e, e)
    z = Add(d, f)
}
"""


def test_concat_shares_the_union_range() -> None:
    model = graph(CONCAT)
    data = noise(model)
    plan = planned(model, TOY, data=data, quantized_io=True)
    assert plan.tensors["a"].storage == plan.tensors["c"].storage == plan.tensors["y"].storage
    storage = plan.tensors["c"].storage
    assert isinstance(storage, QParams)
    low, high = min(0, data["y"].min()), max(data["x"].max(), data["y"].max())
    assert float(storage.scale) == pytest.approx((high - low) / 255, rel=1e-5)


def test_a_merge_that_costs_too_much_becomes_an_explicit_conversion() -> None:
    model = graph(CONCAT)
    data = noise(model)
    data["y"] = data["y"] * 100
    plan = planned(model, TOY, data=data, quantized_io=True)
    edge = Edge(node_of(model, "c"), 0)
    assert plan.tensors["a"].storage != plan.tensors["c"].storage
    assert plan.edges[edge].storage == plan.tensors["c"].storage
    assert plan.edges[edge].why is Reason.SEPARATE
    assert "one scale for all inputs of Concat would widen this range" in plan.edges[edge].detail


def test_constant_in_a_concat_joins_the_sharing_group() -> None:
    model = graph("""
    g (float[1,4] x) => (float[1,8] z) <float[1,4] cls = {-50, 0, 1, 2}>
    { c = Concat <axis = 1> (cls, x)  z = Relu(c) }
    """)
    plan = planned(model, TOY, quantized_io=True)
    storage = plan.tensors["x"].storage
    assert isinstance(storage, QParams)
    assert plan.edges[Edge(node_of(model, "c"), 0)].storage == storage == plan.tensors["c"].storage
    assert float(storage.scale) * 255 > 50


def test_unknown_operator_stays_float_and_is_converted_around() -> None:
    model = graph("""
    g (float[1,4] x) => (float[1,2] z) <float[4,2] w = {1,2,3,4,5,6,7,8}>
    { a = Relu(x)  b = Sin(a)  z = MatMul(b, w) }
    """)
    plan = planned(model, ORT_CPU, quantized_io=True)
    assert plan.tensors["b"].storage == FloatStorage()
    assert plan.tensors["b"].why is Reason.UNSUPPORTED
    assert plan.tensors["b"].detail == "stored as float32: Sin cannot write uint8 on ort-cpu"
    edge = plan.edges[Edge(node_of(model, "z"), 0)]
    assert edge.storage.dtype is DType.U8
    assert edge.why is Reason.OPERAND
    assert edge.detail.startswith("MatMul requires uint8 here, the tensor is float32; range [0, ")


def test_the_detail_names_the_producers_that_cannot_write_or_the_consumers_that_cannot_read_an_encoding() -> None:
    model = graph("""
    g (float[1,4] x) => (float[4,1] z)
    { a = Sin(x)  b = Transpose(a)  z = Sigmoid(b) }
    """)
    plan = planned(model, ORT_CPU, quantized_io=True)
    assert plan.tensors["x"].detail == "stored as float32: no consumer reads uint8 on ort-cpu"
    assert plan.tensors["b"].detail == "stored as float32: Sin cannot write uint8 on ort-cpu"


def test_followers_between_float_operators_stay_float() -> None:
    model = graph("""
    g (float[1,4] x) => (float[1,4] z)
    { a = Sin(x)  b = Relu(a)  z = Cos(b) }
    """)
    plan = planned(model, ORT_CPU)
    assert plan.tensors["b"].storage == FloatStorage()
    assert plan.tensors["b"].why is Reason.NEIGHBOURS


def test_a_bias_that_overflows_int32_enlarges_its_weight_scale() -> None:
    model = graph("""
    g (float[1,2,2,2] x) => (float[1,2,2,2] z)
    <float[2,2,1,1] w = {1, 1, 1e-9, 1e-9}, float[2] b = {1, 100}> { z = Conv(x, w, b) }
    """)
    plan = planned(model, ORT_CPU, quantized_io=True)
    name = node_of(model, "z")
    weight, bias = (plan.edges[Edge(name, index)].storage for index in (1, 2))
    assert isinstance(weight, QParams)
    assert isinstance(bias, QParams)
    assert 100 / float(bias.scale[1]) < 2**31
    assert float(weight.scale[1]) > 1e-9 / 127


def test_a_beta_that_overflows_int32_enlarges_the_scale_of_its_gamma() -> None:
    model = graph("""
    g (float[1,4,4] x) => (float[1,4,4] z)
    <float[4] gamma = {1, 1, 1, 1}, float[4] beta = {1, -1, 2, 0}, float tiny = {1e-8}>
    { a = Mul(x, tiny)  z = LayerNormalization <axis = -1> (a, gamma, beta) }
    """)
    plan = planned(model, open_target("qnn-htp:sm8550"), W8A16)
    name = node_of(model, "z")
    gamma, beta = (plan.edges[Edge(name, index)].storage for index in (1, 2))
    assert isinstance(gamma, QParams)
    assert isinstance(beta, QParams)
    assert 2 / float(beta.scale) < 2**31
    assert float(gamma.scale) > 1 / 32767


def test_constant_activation_gets_a_safe_scale() -> None:
    model = graph("g (float[1,4] x) => (float[1,4] z) <float zero = {0}> { a = Mul(x, zero)  z = Relu(a) }")
    storage = planned(model, ORT_CPU, quantized_io=True).tensors["a"].storage
    assert isinstance(storage, QParams)
    assert np.isfinite(storage.scale).all()
    assert (storage.scale > 0).all()


def test_softmax_scores_keep_their_whole_range_whatever_the_method() -> None:
    model = graph("g (float[1,64,64] x) => (float[1,64,64] z) { a = Add(x, x)  s = Softmax(a)  z = Mul(s, s) }")
    data = noise(model, count=64)
    data["x"][0, 0, 0, 0] = 40.0  # one outlier that percentile would clip
    stats = observe(model, ORT_CPU, data, histograms=True)
    plan = make_plan(model, ORT_CPU.table, stats, Request(W8A8, "percentile", quantized_io=True))
    scores, before = plan.tensors["a"].storage, plan.tensors["x"].storage
    assert isinstance(scores, QParams)
    assert isinstance(before, QParams)
    assert float(scores.scale) * 255 == pytest.approx(80 - 2 * data["x"].min(), rel=1e-3)
    assert float(before.scale) * 255 < 30


def test_a_constant_in_a_concat_has_the_qparams_of_the_output() -> None:
    body = "<float[1,2] c = {0, 0}> { r = Neg(x)  y = Concat <axis = 1> (c, r) }"
    model = graph(f"g (float[1,2] x) => (float[1,4] y) {body}")
    plan = planned(model, open_target("qnn-htp:sm8550"), W8A16)
    assert plan.edges[Edge(node_of(model, "y"), 0)].storage == plan.tensors["y"].storage


@pytest.mark.parametrize(("method", "clips"), [("minmax", False), ("percentile", False), ("mse", True)])
def test_mse_applies_to_weights(method: str, clips: bool) -> None:
    """One outlier among very many values: rounding them more coarsely costs more than clipping it."""
    weight = np.random.default_rng(0).standard_normal((300000, 2)).astype(np.float32)
    weight[0, 0] = 40.0
    model = graph("net (float[1, 300000] x, float[300000, 2] w) => (float[1, 2] y) { y = MatMul(x, w) }")
    value = next(v for v in model.graph.inputs if v.name == "w")
    model.graph.inputs.remove(value)
    value.const_value = ir.tensor(weight)
    model.graph.register_initializer(value)
    stats = observe(model, ORT_CPU, noise(model), histograms=True)
    plan = make_plan(model, ORT_CPU.table, stats, Request(W8A8, method))
    (scale,) = [choice.storage.scale for edge, choice in plan.edges.items() if edge.index == 1]
    assert bool(scale[0] < 0.9 * 40.0 / 127) is clips
    assert scale[1] == pytest.approx(np.abs(weight[:, 1]).max() / 127, rel=0.2)


MERGED = """
g (float[1,2,4,4] x, float[1,2,4,4] n) => (float[1,4,4,4] z)
<float[2,2,1,1] w = {1, -1, 2, 1}, float[2] b = {0.1, 0.2}>
{ c = Conv(x, w, b)  r = Relu(c)  m = Concat <axis = 1> (r, n)  z = Neg(m) }
"""


def test_conv_and_relu_are_not_fused_where_zero_is_not_the_lowest_integer() -> None:
    """Concatenated with negative values, the output of the Relu has another zero point."""
    htp, model = open_target("qnn-htp:sm8550"), graph(MERGED)
    plan = planned(model, htp, W8A8)
    assert plan.tensors["c"].storage == plan.tensors["r"].storage == plan.tensors["m"].storage
    assert plan.tensors["c"].why is Reason.SHARED
    assert plan.tensors["c"].detail == "Conv+Relu is not fused, because zero is not the lowest integer of its output"
    positive = planned(model, htp, W8A8, data={name: np.abs(array) for name, array in noise(model).items()})
    assert positive.tensors["c"].why is Reason.INTERIOR
    in_float = planned(model, htp, W8A8, keep={"r": FP16})
    assert in_float.tensors["c"].why is Reason.INTERIOR


def test_a_relu_that_is_not_fused_changes_no_value(tmp_path: Path) -> None:
    htp, model = open_target("qnn-htp:sm8550"), graph(MERGED)
    plan = planned(model, htp, W8A8)
    fused = dataclasses.replace(plan, tensors={name: row for name, row in plan.tensors.items() if name != "c"})
    sample = {name: array[0] for name, array in noise(model).items()}
    alone, together = (
        next(iter(SessionRun(emit_qdq(model, variant), Mode.EXACT, tmp_path)([sample]))) for variant in (plan, fused)
    )
    np.testing.assert_array_equal(alone["z"], together["z"])


SHARED_RELU = """
g (float[1,2,4,4] x, float[1,2,4,4] n) => (float[1,6,4,4] z, float[1,2,4,4] y)
<float[2,2,1,1] w = {1, -1, 2, 1}, float[2,2,1,1] v = {1, 1, 2, 1}, float[2] b = {0.1, 0.2}>
{
    c = Conv(x, w, b)  r = Relu(c)  d = Conv(r, v, b)  s = Relu(d)  y = Neg(s)
    p = Concat <axis = 1> (r, s)  m = Concat <axis = 1> (p, n)  z = Neg(m)
}
"""


def test_a_relu_with_other_consumers_stays_fused_and_converts_once_where_the_range_becomes_negative() -> None:
    htp, model = open_target("qnn-htp:sm8550"), graph(SHARED_RELU)
    plan = planned(model, htp, W8A8)
    conversions = {edge: choice for edge, choice in plan.edges.items() if choice.why is Reason.SEPARATE}
    assert list(conversions) == [Edge(node_of(model, "m"), 0)]
    assert plan.tensors["c"].why is plan.tensors["d"].why is Reason.INTERIOR
    assert plan.tensors["r"].storage == plan.tensors["s"].storage == plan.tensors["p"].storage
    assert int(plan.tensors["p"].storage.zero_point) == 0
    (choice,) = conversions.values()
    assert choice.detail == "explicit conversion: with the negative range of Concat, Conv+Relu could not be fused"


def test_a_negative_range_that_is_converted_into_a_merge_counts_and_keeps_its_reason() -> None:
    """n is converted into the last merge: p converts too, or the chains before it could not be fused."""
    htp, model = open_target("qnn-htp:sm8550"), graph(SHARED_RELU)
    first, second = (Edge(node_of(model, "m"), index) for index in (0, 1))
    request = Request(W8A8, pins=Pins(separate={second: "as asked"}))
    plan = make_plan(model, htp.table, observe(model, htp, noise(model)), request)
    assert plan.edges[second].detail == "as asked"
    assert "could not be fused" in plan.edges[first].detail
    assert plan.tensors["c"].why is plan.tensors["d"].why is Reason.INTERIOR
