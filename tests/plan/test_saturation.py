"""Ranges before activation functions: only what the outputs depend on, in 8 bits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.encoding import Encoding, QParams
from dovetail.op_support import A8, A16, W8A8, W8A16, Precision
from dovetail.plan import saturation
from dovetail.plan.make import make_plan
from dovetail.plan.request import Request
from dovetail.plan.saturation import needed_range
from dovetail.targets import open_target
from tests.equality import model_from, normal, sqnr_db
from tests.planning import observe, planned

SILU = "s = Sigmoid(c) y = Mul(c, s)"


def layer(nodes: str) -> ir.Model:
    """A linear layer with a range of about -40 to 8, and what reads it."""
    text = f"g (float[4,64] x) => (float[4,64] y) {{ m = MatMul(x, w) c = Add(m, b) {nodes} }}"
    return model_from(text, w=normal(64, 64), b=np.where(np.arange(64) < 32, -30, 0).astype(np.float32))


def inner(model: ir.Model) -> ir.Value:
    return next(node.outputs[0] for node in model.graph if node.op_type == "Add")


@pytest.mark.parametrize(
    ("nodes", "low", "high"),
    [
        (SILU, -6.7, 8),
        ("y = Gelu(c)", -2.8, 8),
        ("y = HardSwish(c)", -3, 8),
        ("y = Sigmoid(c)", -6.9, 6.9),
        ("y = Tanh(c)", -3.5, 3.5),
        ("y = HardSigmoid<alpha=0.5, beta=0.5>(c)", -1, 1),
        ("y = Relu(c)", -40, 8),
        ("s = Sigmoid(c) y = Mul(x, s)", -6.9, 6.9),
        (f"{SILU.replace('y', 'z')} y = Add(z, c)", -40, 8),
        ("y = Sigmoid(c) i = ArgMax(c) j = Relu(i)", -40, 8),
        ("y = Sigmoid(c) g = Greater(c, x)", -40, 8),
        ("y = Sigmoid(c) k = Cast<to=7>(c)", -40, 8),
    ],
)
def test_the_range_is_what_all_readers_need(nodes: str, low: float, high: float) -> None:
    assert needed_range([inner(layer(nodes))], -40, 8, A8) == pytest.approx((low, high), abs=0.3)


def test_16_bits_and_graph_outputs_keep_their_range() -> None:
    assert needed_range([inner(layer(SILU))], -40, 8, A16) == (-40, 8)
    model = layer(SILU)
    model.graph.outputs.append(inner(model))
    assert needed_range([inner(model)], -40, 8, A8) == (-40, 8)


def test_readers_behind_operators_that_keep_the_scale_count() -> None:
    model = layer("t = Transpose<perm=[0,1]>(c) y = HardSwish(t)")
    values = [inner(model), next(node.outputs[0] for node in model.graph if node.op_type == "Transpose")]
    assert needed_range(values, -40, 8, A8) == pytest.approx((-3, 8), abs=0.1)
    assert needed_range(values[:1], -40, 8, A8) == (-40, 8)


FUNCTIONS = {
    **{name: getattr(saturation, f"_{name}") for name in ("silu", "gelu", "hard_swish", "sigmoid")},
    "tanh": np.tanh,
    "hard_sigmoid": saturation._hard_sigmoid_with(0.2, 0.5),
}


@given(st.floats(-100, 99), st.floats(0.1, 100), st.sampled_from(sorted(FUNCTIONS)))
def test_no_output_changes_by_more_than_a_quarter_of_a_step(low: float, width: float, name: str) -> None:
    function, high = FUNCTIONS[name], low + width
    start, end = saturation._not_constant(function, low, high, A8)
    assert low <= start < end <= high
    x = np.linspace(low, high, 10_001)
    exact = function(x)
    step = (max(exact.max(), 0) - min(exact.min(), 0)) / 255
    assert np.abs(function(np.clip(x, start, end)) - exact).max() <= 0.27 * step


def test_an_outlier_that_the_method_clips_does_not_count() -> None:
    """Beside an output of 4000, all negative outputs of a SiLU are less than a quarter of a step."""
    text = f"g (float[4096] x) => (float[4096] y) {{ c = Mul(x, one) {SILU} }}"
    model, target = model_from(text, one=np.ones(1, np.float32)), open_target("ort-cpu")
    data = {"x": np.random.default_rng(0).standard_normal((64, 4096)).astype(np.float32)}
    data["x"][0, 0] = 4000
    stats = observe(model, target, data, histograms=True)
    lows = {}
    for method in ("minmax", "percentile"):
        stored = make_plan(model, target.table, stats, Request(W8A8, method)).tensors["c"].storage
        assert isinstance(stored, QParams)
        lows[method] = -float(stored.zero_point * stored.scale)
    assert lows["minmax"] == 0 > -2 > lows["percentile"]


@pytest.mark.parametrize(("precision", "gain_db"), [(W8A8, 3.0), (W8A16, 0.0)])
def test_a_silu_gains_in_8_bits_and_nothing_changes_in_16(precision: Precision, gain_db: float) -> None:
    model, target = layer(SILU), open_target("qnn-htp:sm8550")
    data = {"x": np.random.default_rng(0).standard_normal((4, 4, 64)).astype(np.float32) / 4}
    stored = planned(model, target, precision, data=data).tensors["c"].storage
    assert isinstance(stored, QParams)
    x = data["x"] @ np.asarray(model.graph.initializers["w"].const_value) + np.asarray(
        model.graph.initializers["b"].const_value
    )
    whole = quantized(x, float(x.min()), float(x.max()), stored.encoding)
    ours = (np.clip(np.rint(x / stored.scale) + stored.zero_point, 0, stored.dtype.grid.high) - stored.zero_point) * (
        stored.scale
    )
    exact = saturation._silu(x)
    gained = sqnr_db(exact, saturation._silu(ours)) - sqnr_db(exact, saturation._silu(whole))
    assert gained == pytest.approx(0, abs=0.1) if gain_db == 0 else gained > gain_db


def quantized(x: np.ndarray, low: float, high: float, encoding: Encoding) -> np.ndarray:
    scale = (high - low) / encoding.dtype.grid.high
    return np.asarray(np.rint(x / scale) * scale)
