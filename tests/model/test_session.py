"""The exact mode computes every Q and DQ as ONNX defines it, whatever operator is beside it."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from dovetail.encoding import Array
from dovetail.model.session import Mode, open_session
from dovetail.model.write import serialized
from tests.equality import model_from

# ONNX Runtime has optimizations that move, remove or fuse the Q and DQ beside most of these.
OPERATORS = (
    *("Relu(a)", "Clip(a, zero, one)", "Clip(a, minus, one)", "LeakyRelu(a)", "Max(a, zero)", "Min(a, one)", "Neg(a)"),
    *("Abs(a)", "Sigmoid(a)", "Tanh(a)", "HardSigmoid(a)", "Elu(a)", "PRelu(a, k)", "Gelu(a)", "Identity(a)"),
    *("Add(a, k)", "Sub(k, a)", "Mul(a, k)", "MatMul(a, m)", "Conv<pads = [1, 1, 1, 1]>(a, w)", "Softmax(a)"),
    *("Transpose<perm = [0, 1, 3, 2]>(a)", "Unsqueeze(a, axis)", "Slice(a, start, end)", "Pad(a, pads)"),
    *("MaxPool<kernel_shape = [2, 2]>(a)", "AveragePool<kernel_shape = [2, 2]>(a)", "ReduceMean(a, axis)"),
    "Where(mask, a, minus)",
)
CONSTANTS = """float zero = {0}, float one = {1}, float minus = {-1}, int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1},
    bool[6] mask = {1, 0, 1, 1, 0, 1}, int64[1] axis = {2}, int64[4] start = {0, 0, 1, 1}, int64[4] end = {1, 3, 5, 4}
    """
TYPES = [
    ("uint8", 0.03, 0),
    ("uint8", 0.03, 128),
    ("int8", 0.03, -128),
    ("int8", 0.03, 0),
    ("uint16", 0.0001, 0),
    ("uint16", 0.0001, 32768),
    ("int16", 0.0001, 0),
    ("float8e4m3fn", 0.0067, 0),
]


def noise(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def outputs(session: onnxruntime.InferenceSession) -> list[Array]:
    return list(session.run(None, {"x": noise(1, 3, 6, 6)}))


@pytest.mark.parametrize("producer", ["a_q = QuantizeLinear(x, s, z) a = DequantizeLinear(a_q, s, z)", "a = Sin(x)"])
@pytest.mark.parametrize(("dtype", "scale", "zero_point"), TYPES)
def test_q_and_dq_round_as_without_optimizations(dtype: str, scale: float, zero_point: int, producer: str) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for operator in OPERATORS:
        model = model_from(
            f"""g (float[1, 3, 6, 6] x) => (float y) <{CONSTANTS},
                float s = {{{scale}}}, {dtype} z = {{{zero_point}}}>
            {{
                {producer}
                b = {operator}
                b_q = QuantizeLinear(b, s, z)
                b_d = DequantizeLinear(b_q, s, z)
                y = Sin(b_d)
            }}""",
            k=noise(3, 1, 1), w=noise(3, 3, 3, 3), m=noise(6, 6),
        )  # fmt: skip
        for value in model.graph.outputs:
            value.shape = None
        source = serialized(model)
        plain = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        for expected, output in zip(outputs(plain), outputs(open_session(source, Mode.EXACT)), strict=True):
            np.testing.assert_allclose(output, expected, atol=1e-5, err_msg=f"{operator} before {dtype}")
