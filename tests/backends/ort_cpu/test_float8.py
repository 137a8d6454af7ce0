"""Q151 for every operator of its lists, and for others: it reports what ONNX Runtime does not load, nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

from dovetail.checking import check_file
from dovetail.targets import open_target
from dovetail.targets.ort_cpu import rules
from tests.rules.cases import write

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
# Bit patterns: 56 is 1, 64 is 2, 48 is 0.5.
BITS = "56, 64, 48, 56"
NUMBERS = "1, 2, 3, 4"
CONSTANTS = f"""<float s = {{0.5}}, float8e4m3fn z = {{0}}, int8 iz = {{0}}, int32 bz = {{0}}, float bs = {{0.25}},
float[4] b = {{{NUMBERS}}}, float8e4m3fn[4] b_q = {{{BITS}}}, int32[4] b_int = {{{NUMBERS}}},
float[4,1,1] k = {{{NUMBERS}}}, float8e4m3fn[4,1,1] k_q = {{{BITS}}}, int8[4,1,1] k_int = {{{NUMBERS}}},
float[4,4] w = {{{", ".join([NUMBERS] * 4)}}}, float8e4m3fn[4,4] w_q = {{{", ".join([BITS] * 4)}}},
int8[4,4] w_int = {{{", ".join([NUMBERS] * 4)}}},
float[4,4,1,1] c = {{{", ".join([NUMBERS] * 4)}}}, float8e4m3fn[4,4,1,1] c_q = {{{", ".join([BITS] * 4)}}},
float[1,4,4,4] f = {{{", ".join(["2"] * 64)}}}, float lo = {{0}}, float hi = {{6}}, bool[4] mask = {{1, 0, 1, 0}},
int64[2] rows = {{1, 0}}, int64[1] last = {{4}}, int64[1] one = {{1}}, int64[1] rank2 = {{2}},
int64[4] zeros = {{0, 0, 0, 0}}, int64[4] ends = {{1, 2, 4, 4}}, int64[3] flat = {{1, 16, 4}},
int64[4] twice = {{1, 1, 2, 2}}, float[4] sizes = {{1, 1, 2, 2}}, int64[4] batch = {{2, 4, 4, 4}},
int64[8] pads = {{0, 0, 1, 1, 0, 0, 1, 1}}, int64[1,4,4,4] places = {{{", ".join(["1"] * 64)}}},
float[1,4,4,2] grid = {{{", ".join(["0.1"] * 32)}}}>"""
# What the forms below read: ``x_d`` and ``v_d`` are in float8, ``t`` is not quantized, ``*_d`` are quantized constants.
CONSTANT = {
    "b_d": "b_d = DequantizeLinear(b_q, s, z)",
    "b_i": "b_i = DequantizeLinear(b_int, bs, bz)",
    "k_d": "k_d = DequantizeLinear(k_q, s, z)",
    "k_i": "k_i = DequantizeLinear(k_int, s, iz)",
    "w_d": "w_d = DequantizeLinear(w_q, s, z)",
    "w_i": "w_i = DequantizeLinear(w_int, s, iz)",
    "c_d": "c_d = DequantizeLinear(c_q, s, z)",
    "t": "t = Sin(x)",
}
# fmt: off
IMAGES = [
    # Not loaded with Q/DQ pairs on both sides.
    "Add(x_d, v_d)", "Add(x_d, x_d)", "Add(x_d, k_d)", "Add(k_d, x_d)", "Mul(x_d, v_d)", "Mul(x_d, k_d)",
    "Concat<axis = 1>(x_d, v_d)", "Where(mask, x_d, v_d)", "Where(mask, x_d, k_d)",
    "AveragePool<kernel_shape = [2, 2]>(x_d)", "GlobalAveragePool(x_d)", "LeakyRelu(x_d)", "Sigmoid(x_d)",
    "Softmax(x_d)", "ReduceMax(x_d, rank2)", "ReduceMin(x_d, rank2)", "DepthToSpace<blocksize = 2>(x_d)",
    "Expand(x_d, batch)", "Flatten(x_d)", "Gather<axis = 1>(x_d, rows)", "GatherElements<axis = 3>(x_d, places)",
    "Resize(x_d,, sizes)", "Tile(x_d, twice)", "Clip(x_d, lo, hi)", "Conv(x_d, c)", "Conv(x_d, c_d)",
    "Conv(x_d, c_d, b)", "Conv(x_d, c, b)", "Conv(x_d, c_d, b_i)", "Conv(x_d, v_d)",
    # The same with an operand that is not in float8, or with another bias.
    "Add(x_d, k)", "Add(k, x_d)", "Add(x_d, k_i)", "Add(x_d, t)", "Mul(x_d, k)", "Mul(x_d, k_i)",
    "Concat<axis = 1>(x_d, f)", "Concat<axis = 1>(x_d, t)", "Where(mask, x_d, lo)", "Where(mask, x_d, k_i)",
    'Resize<mode = "linear">(x_d,, sizes)', "Conv(x_d, c_d, b_d)", "Conv(x_d, c, b_d)", "Conv(x_d, c, b_i)",
    # Not loaded with a Q/DQ pair on one side.
    "Squeeze(x_d)", "Unsqueeze(x_d, last)", "MaxPool<kernel_shape = [2, 2]>(x_d)", "Slice(x_d, zeros, ends)",
    "Squeeze(t)", "Unsqueeze(t, last)", "MaxPool<kernel_shape = [2, 2]>(t)", "Slice(t, zeros, ends)",
    "MatMul(x_d, v_d)", "MatMul(x_d, w_d)", "MatMul(w_d, x_d)", "MatMul(x_d, w_i)", "MatMul(x_d, w)",
    "MatMul(w, x_d)",
    # Loaded.
    "Transpose<perm = [0, 1, 3, 2]>(x_d)", "Reshape(x_d, flat)", "Identity(x_d)", "SpaceToDepth<blocksize = 2>(x_d)",
    "Pad(x_d, pads)", "GlobalMaxPool(x_d)", "Dropout(x_d)", "ScatterElements<axis = 3>(x_d, places, v_d)",
    "Trilu(x_d)", "Max(x_d, v_d)", "Min(x_d, v_d)", "Max(x_d, lo)", "CumSum(x_d, one)", "Sub(x_d, v_d)",
    "Sub(x_d, k_d)", "Div(x_d, k_d)", "Relu(x_d)", "Pow(x_d, lo)", "LogSoftmax(x_d)", "Tanh(x_d)", "HardSigmoid(x_d)",
    "HardSwish(x_d)", "Gelu(x_d)", "Elu(x_d)", "PRelu(x_d, k_d)", "Abs(x_d)", "Neg(x_d)", "Exp(x_d)", "Sin(x_d)",
    "Cos(x_d)", "Erf(x_d)", "Softplus(x_d)", "Mish(x_d)", "Selu(x_d)", "Celu(x_d)", "Floor(x_d)", "Round(x_d)",
    "Sign(x_d)", "ReduceMean(x_d, rank2)", "ReduceSum(x_d, rank2)", "LpNormalization(x_d)",
    "InstanceNormalization(x_d, b, b)", "LayerNormalization(x_d, b, b)", "BatchNormalization(x_d, b, b, b, b)",
    "ConvTranspose(x_d, c_d)", 'Einsum<equation = "abcd,abde->abce">(x_d, v_d)', "GridSample(x_d, grid)",
    "Sum(x_d, v_d)", "Mean(x_d, v_d)", "Transpose<perm = [0, 1, 3, 2]>(t)", "Flatten(t)", "Gather<axis = 1>(t, rows)",
    "Sigmoid(t)",
]
ROWS = [
    "Gemm(x_d, w_d)", "Gemm<transB = 1>(x_d, w_d)", "Gemm(w_d, x_d)", "Gemm(x_d, v_d)", "Gemm(x_d, w_i)",
    "Gemm(x_d, w_d, b_i)", "Gemm(x_d, w_d, b)", "Gemm(x_d, w)", "Gemm(x_d, w, b)", "Gemm(x_d, w_d, b_d)",
    "Gemm(x_d, w, b_d)", "Gemm(x_d, w, b_i)", "Gemm(w, x_d)", "MatMul(x_d, v_d)", "MatMul(x_d, w_d)",
    "MatMul(x_d, w)", "MatMul(w, x_d)",
]
# Several nodes, of which the last one writes ``m``.
SEVERAL = [
    *(f"n = {layer}  m = Relu(n)" for layer in (
        "MatMul(x_d, w_d)", "MatMul(x_d, w)", "Gemm(x_d, w_d)", "Gemm(x_d, w)", "Gemm(x_d, w_d, b)",
        "Gemm(x_d, w_d, b_i)", "Gemm(x_d, w_d, b_d)", "Add(x_d, v_d)", "Add(x_d, b)", "Sigmoid(x_d)",
    )),
    *(f"n = MatMul(x_d, {weight})  m = Add(n, {bias})" for weight in ("w", "w_d") for bias in ("b", "b_d", "b_i")),
    *(f"n = MatMul(x_d, {weight})  o = Add(n, b)  m = Relu(o)" for weight in ("w", "w_d")),
    "n = MatMul(x_d, w_d)  m = Sigmoid(n)", "n = Gemm(x_d, w)  m = Clip(n, lo, hi)",
    "n = Gemm(x_d, w)  m = LeakyRelu(n)", "n = ArgMax<axis = 1>(x_d)  m = Cast<to = 1>(n)",
    "n = ArgMin<axis = 1>(x_d)  m = Cast<to = 1>(n)", "n = Neg(x_d)  m = Slice(n, one, rank2)",
]
# fmt: on
FORMS = [("1,4,4,4", f"m = {form}") for form in IMAGES] + [("4,4", f"m = {form}") for form in ROWS]
FORMS += [("4,4", form) for form in SEVERAL] + [("1,4,4,4", "m, n = Split<axis = 1, num_outputs = 2>(x_d)")]


def pair(name: str) -> str:
    return f"{name}_8 = QuantizeLinear({name}, s, z)  {name}_d = DequantizeLinear({name}_8, s, z)  "


def text_of(shape: str, form: str, between: bool) -> str:
    """The form after Q/DQ pairs, and before some: ``between``."""
    inputs = [f"float[{shape}] x", *([f"float[{shape}] v"] if "v_d" in form else [])]
    nodes = (pair("x") if "x_d" in form else "") + (pair("v") if "v_d" in form else "")
    nodes += "  ".join(node for name, node in CONSTANT.items() if any(f"{name}{end}" in form for end in ",)"))
    outputs = ["m", "n"] if form.startswith("m, n") else ["m"]
    nodes += "  " + form + "  " + ("".join(map(pair, outputs)) if between else "")
    nodes += "  ".join(f"y_{name} = Sin({name}{'_d' if between else ''})" for name in outputs)
    results = ", ".join(f"float y_{name}" for name in outputs)
    return f"{HEAD} g ({', '.join(inputs)}) => ({results}) {CONSTANTS} {{ {nodes} }}"


def outputs_of(path: Path, level: onnxruntime.GraphOptimizationLevel) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    feeds = {value.name: random.standard_normal(value.shape).astype(np.float32) * 3 for value in session.get_inputs()}
    return list(session.run(None, feeds))


def effect_of(path: Path) -> str:
    """What the default optimizations do: ``not loaded``, ``changed`` or ``equal`` outputs."""
    expected = outputs_of(path, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    try:
        found = outputs_of(path, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
    except (state.Fail, state.InvalidGraph, state.NotImplemented):
        return "not loaded"
    close = all(np.allclose(a, b, atol=1e-5, equal_nan=True) for a, b in zip(expected, found, strict=True))
    return "equal" if close else "changed"


def reported(path: Path) -> str:
    messages = [f.message for f in check_file(path, open_target("ort-cpu")) if f.code == "Q151"]
    if any("does not load" in message for message in messages):
        return "not loaded"
    return "changed" if messages else "equal"


@pytest.mark.parametrize("between", [True, False], ids=["between", "behind"])
@pytest.mark.parametrize(("shape", "form"), FORMS)
def test_what_is_reported_is_what_does_not_load(shape: str, form: str, between: bool, tmp_path: Path) -> None:
    path = write(text_of(shape, form, between), tmp_path)
    assert reported(path) == effect_of(path)


def test_every_operator_of_the_lists_is_tested() -> None:
    forms = " ".join(form for _, form in FORMS)
    listed = (rules._MOVED_PAST, rules._BEHIND, rules._BETWEEN, rules._BETWEEN_ALIKE, rules._LINEAR)
    assert [op for ops in listed for op in ops if f"{op}(" not in forms and f"{op}<" not in forms] == []
