"""Small linear models for the tests of block-quantized weights."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tests.planning import graph

OUT = 48
BIAS = np.linspace(-3, 4, OUT).astype(np.float32)
# Operator -> shape of the input, of the weight, attributes, and the axis of the weight's input channels. ``C`` is the
# number of input channels, ``OUT`` that of output channels: above 32, HTP computes some blocks wrongly.
LAYERS = {
    "MatMul": ("64,C", ("C", OUT), "", 0),
    "Gemm": ("64,C", ("C", OUT), "", 0),
    "Gemm transB": ("64,C", (OUT, "C"), "<transB = 1>", 1),
    "Gemm transA": ("C,64", ("C", OUT), "<transA = 1>", 0),
    "Gemm both": ("C,64", (OUT, "C"), "<transA = 1, transB = 1>", 1),
    "Conv": ("1,C,8,8", (OUT, "C", 1, 1), "", 1),
}


def weight_of(layer: str, channels: int) -> np.ndarray:
    """Weights whose blocks of input channels and output channels have different magnitudes."""
    shape = tuple(channels if size == "C" else size for size in LAYERS[layer][1])
    axis = LAYERS[layer][3]
    random = np.random.default_rng(1)
    magnitude = np.exp(0.5 * random.normal(size=[n if i == axis else 1 for i, n in enumerate(shape)]))
    return (random.standard_normal(shape) * magnitude).astype(np.float32)


def layer_model(layer: str, channels: int = 64, weight: np.ndarray | None = None) -> ir.Model:
    """One layer, with a bias where the operator has one."""
    data, _, attributes, _ = LAYERS[layer]
    op, inputs = layer.partition(" ")[0], "x, w" if layer == "MatMul" else "x, w, b"
    out = f"1,{OUT},8,8" if op == "Conv" else f"64,{OUT}"
    body = f"g (float[{data.replace('C', str(channels))}] x) => (float[{out}] y)"
    array = weight_of(layer, channels) if weight is None else weight
    constants = (
        f"<float[{','.join(map(str, array.shape))}] w = {{{_numbers(array)}}}, float[{OUT}] b = {{{_numbers(BIAS)}}}>"
    )
    return graph(f"{body} {constants} {{ y = {op}{attributes}({inputs}) }}")


def _numbers(array: np.ndarray) -> str:
    return ", ".join(f"{value:.9g}" for value in array.reshape(-1))
