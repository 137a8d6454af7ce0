"""Kernels that are silently wrong for some scales and zero points: a naive plan differs from the simulation, ours does
not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from dovetail.encoding import QParams
from dovetail.model.session import Mode
from dovetail.numerics.affine import dequantize, quantize
from dovetail.op_support import A16, W8A8, W8A16, OpSupport, Precision, signature
from dovetail.plan import qparams
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.verify.run import SessionRun
from tests.backends.qnn_htp.agreement import agreement_db
from tests.backends.qnn_htp.linear_layers import CHANNELS, LINEAR, linear, numbers
from tests.changed import changed, with_op
from tests.equality import model_from, normal
from tests.planning import graph, noise, planned

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

SOFTMAX = "g (float[1,2,68,68] x) => (float[1,2,68,68] y) { y = Softmax <axis = -1> (x) }"
# Two layers of a windowed backbone, concatenated for the neck: without their class tokens, as one image.
LAYERS = f"""
g (float[4,37,64] p, float[4,37,64] q) => (float[1,12,12,128] y)
<float[64] gamma = {{{",".join(["1", "2"] * 32)}}}, float[64] beta = {{{",".join(["1", "-1"] * 32)}}},
 int64[1] one = {{1}}, int64[1] all = {{37}}, int64[4] image = {{1,12,12,64}}>
{{
    a = LayerNormalization <axis = -1> (p, gamma, beta)
    b = LayerNormalization <axis = -1> (q, gamma, beta)
    c = Slice(a, one, all, one)
    d = Slice(b, one, all, one)
    e = Reshape(c, image)
    f = Reshape(d, image)
    y = Concat <axis = 3> (e, f)
}}
"""
# A Conv and a Gemm whose Relu is concatenated with something negative.
MERGED = {
    "Conv": "float[1,8,12,12] x, float[1,4,12,12] n) => (float[1,12,12,12] y) <float[8,8,1,1] w",
    "Gemm": "float[16,8] x, float[16,4] n) => (float[16,12] y) <float[8,8] w",
}


# A PRelu with several slopes after a Conv or ConvTranspose, and one after an Add.
PRELU = """
g (float[4,3,11,7] x) => (float[4,5,11,7] y)
{{
    c = {layer} <pads = [1, 1, 1, 1]> (x, w)
    p = PRelu(c, a)
    s = Add(p, c)
    y = PRelu(s, b)
}}
"""


@pytest.fixture
def htp() -> Target:
    return open_target("qnn-htp:sm8550")


def with_support(target: Target, op: str, support: OpSupport) -> Target:
    return with_op(target, op, support)


def test_the_output_scale_of_an_8_bit_softmax_is_a_multiple_of_a_step(htp: Target, tmp_path: Path) -> None:
    data = noise(graph(SOFTMAX), scale=0.1)
    naive = with_support(htp, "Softmax", dataclasses.replace(htp.table.ops["Softmax"], output_scale=None))
    assert agreement_db(graph(SOFTMAX), naive, W8A8, data, tmp_path) < 25
    assert agreement_db(graph(SOFTMAX), htp, W8A8, data, tmp_path) > 40


def test_the_input_scale_of_a_16_bit_softmax_is_not_tiny(htp: Target, tmp_path: Path) -> None:
    data = noise(graph(SOFTMAX), scale=0.01)
    naive = with_support(htp, "Softmax", dataclasses.replace(htp.table.ops["Softmax"], least_scale={}))
    assert agreement_db(graph(SOFTMAX), naive, W8A16, data, tmp_path) < 30
    assert agreement_db(graph(SOFTMAX), htp, W8A16, data, tmp_path) > 60


@pytest.mark.parametrize("chip", ["sm8550", "v68", "v81"])
def test_the_input_scale_of_a_16_bit_softmax_is_one_that_is_not_truncated(chip: str, tmp_path: Path) -> None:
    """A range of 1.2 is 110.8 steps of the scale; the emulator computes with 110."""
    target, model = open_target(f"qnn-htp:{chip}"), graph(SOFTMAX)
    data = {name: np.clip(array, -0.6, 0.6) for name, array in noise(model).items()}
    naive = open_target(f"qnn-htp:{chip}", {"workarounds": "off"})
    assert agreement_db(model, naive, W8A16, data, tmp_path / "naive") < 60
    assert agreement_db(model, target, W8A16, data, tmp_path / "ours") > 75


def test_the_inputs_of_an_8_bit_concat_have_its_qparams(htp: Target, tmp_path: Path) -> None:
    data = noise(graph(LAYERS))
    data["q"][:, 0, 0, 0] = 40.0  # an outlier, so that the two ranges differ
    naive = with_support(htp, "Concat", dataclasses.replace(htp.table.ops["Concat"], shares=()))
    assert agreement_db(graph(LAYERS), naive, W8A8, data, tmp_path) < 25
    assert agreement_db(graph(LAYERS), htp, W8A8, data, tmp_path) > 28


def test_a_16_bit_log_is_kept_in_float(htp: Target, tmp_path: Path) -> None:
    body = "g (float[1,20,16] x) => (float[1,20,16] y) { a = Sigmoid(x)  b = Log(a)  y = Neg(b) }"
    data = noise(graph(body))
    naive = with_support(htp, "Log", OpSupport((signature(A16, out=A16),)))
    assert agreement_db(graph(body), naive, W8A16, data, tmp_path) < 10
    assert agreement_db(graph(body), htp, W8A16, data, tmp_path) > 45


@pytest.mark.parametrize("chip", ["sm8550", "qcs6490"])
def test_64_bit_indices_need_no_rewrite(chip: str, tmp_path: Path) -> None:
    body = """
    g (float[20,16] x, int64[6] i) => (float[6,16] y)
    <int64 last = {19}> { a = Relu(x)  k = Sub(last, i)  b = Gather(a, k)  y = Relu(b) }
    """
    indices = np.random.default_rng(0).integers(0, 20, (2, 6))
    data = {"x": noise(graph(body), 2)["x"], "i": indices}
    assert agreement_db(graph(body), open_target(f"qnn-htp:{chip}"), W8A16, data, tmp_path) > 60


@pytest.mark.parametrize("op", LINEAR)
def test_weight_scales_are_large_enough_to_requantize(htp: Target, op: str, tmp_path: Path) -> None:
    """Nearly dead channels, as folded batch norms leave them, are saturated at 16 bits."""
    body = linear(op, CHANNELS)
    data = noise(graph(body))
    naive = with_support(htp, op, dataclasses.replace(htp.table.ops[op], least_weight_scale=None))
    assert agreement_db(graph(body), naive, W8A16, data, tmp_path) < 10
    assert agreement_db(graph(body), htp, W8A16, data, tmp_path) > 60


@pytest.mark.parametrize("precision", [W8A8, W8A16])
@pytest.mark.parametrize("op", MERGED)
def test_a_relu_is_fused_only_where_zero_is_the_lowest_integer(
    htp: Target, op: str, precision: Precision, tmp_path: Path
) -> None:
    weight = f"{{{numbers(np.random.default_rng(0).standard_normal(64))}}}"
    nodes = f"c = {op}(x, w, b)  r = Relu(c)  m = Concat <axis = 1> (r, n)  y = Neg(m)"
    body = f"g ({MERGED[op]} = {weight}, float[8] b = {{1, 2, 3, 4, -1, -2, -3, -4}}> {{ {nodes} }}"
    fused = changed(htp, chains=tuple(dataclasses.replace(chain, at_lowest=False) for chain in htp.table.chains))
    model = graph(body)
    rejected = htp.backend.compile(fused.backend.emit(model, planned(model, fused, precision), tmp_path), tmp_path)
    assert str(rejected.findings[0].place) == f"{op}/c"
    assert agreement_db(graph(body), htp, precision, noise(model), tmp_path) > 40


def test_pixels_from_minus_one_to_one_are_rounded_as_in_the_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all 255 steps from -1 to 1 every pixel is half way between two, where HTP rounds differently."""
    model = graph("g (float[1,1,16,16] x) => (float[1,1,16,16] y) { y = Neg(x) }")
    data = {"x": (np.arange(256, dtype=np.float32) / 255 * 2 - 1).reshape(1, 1, 1, 16, 16)}
    assert agreement_db(model, open_target("qnn-htp:sm8550"), W8A8, data, tmp_path / "ours") > 50
    monkeypatch.setattr(qparams, "with_ends_on_grid", lambda total, encoding: total)
    assert agreement_db(model, open_target("qnn-htp:sm8550"), W8A8, data, tmp_path / "naive") < 45


def test_an_8_bit_silu_does_not_round_its_gate(htp: Target, tmp_path: Path) -> None:
    """So the target can differ from the simulation by one step although it is the more exact one of the two."""
    model = graph("g (float[1,8,16,16] x) => (float[1,8,16,16] y) { s = Sigmoid(x)  y = Mul(x, s) }")
    data = {"x": np.linspace(-6, 6, 2048, dtype=np.float32).reshape(1, 1, 8, 16, 16)}
    plan = planned(model, htp, W8A8, data=data)
    x, y = plan.tensors["x"].storage, plan.tensors["y"].storage
    assert isinstance(x, QParams)
    assert isinstance(y, QParams)
    sample = {"x": dequantize(quantize(data["x"][0], x), x)}  # every integer, so that the input is not rounded
    artifacts = htp.backend.emit(model, plan, tmp_path)
    (emulated,) = htp.backend.runner.run(htp.backend.compile(artifacts, tmp_path), [sample])
    (simulated,) = SessionRun(artifacts[0].path, Mode.EXACT, tmp_path)([sample])
    exact = dequantize(quantize(sample["x"] / (1 + np.exp(-sample["x"])), y), y)
    np.testing.assert_allclose(emulated["y"], exact, atol=1e-3 * float(y.scale))
    assert np.mean(np.abs(simulated["y"] - exact) > 0.5 * float(y.scale)) > 0.01


@pytest.mark.parametrize(
    ("layer", "slopes", "precision", "dtypes", "least_db"),
    [
        ("Conv", (5, 1, 1), W8A8, {"p": "uint8", "y": "uint8"}, 35),
        ("Conv", (5, 1, 1), W8A16, {"p": "uint16", "y": "float16"}, 50),
        ("ConvTranspose", (5, 1, 1), W8A16, {"p": "uint16", "y": "float16"}, 50),
        ("Conv", (5, 11, 7), W8A16, {"p": "float16", "y": "float16"}, 50),
        ("Conv", (7,), W8A16, {"p": "float16", "y": "float16"}, 50),
    ],
)
def test_a_16_bit_prelu_is_in_integers_only_with_a_slope_per_channel_behind_a_convolution(
    layer: str,
    slopes: tuple[int, ...],
    precision: Precision,
    dtypes: dict[str, str],
    least_db: float,
    htp: Target,
    tmp_path: Path,
) -> None:
    kernel = (3, 5, 3, 3) if layer == "ConvTranspose" else (5, 3, 3, 3)
    weights = {"w": normal(*kernel), "a": abs(normal(*slopes, seed=1)), "b": normal(5, 1, 1, seed=2)}
    model = model_from(PRELU.format(layer=layer), **weights)
    plan = planned(model, htp, precision, data=noise(model))
    assert {name: str(plan.tensors[name].storage.dtype) for name in dtypes} == dtypes
    assert agreement_db(model, htp, precision, noise(model), tmp_path) > least_db
