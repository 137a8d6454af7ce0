"""One linear operator in ONNX text, with weights of chosen magnitude per output channel."""

from __future__ import annotations

import numpy as np

# Weights of eight output channels, of which two are nearly dead beside the others and one is zero, with its bias.
CHANNELS = np.array([1, 0.5, 1e-7, 2, 1, 0, 1e-6, 1])
LINEAR = {
    "Conv": ("float[1,8,8,8]", "<pads = [1,1,1,1]>", (8, 8, 3, 3), 0),
    "ConvTranspose": ("float[1,8,8,8]", "", (8, 8, 2, 2), 1),
    "Gemm": ("float[16,8]", "", (8, 8), 1),
    "MatMul": ("float[1,16,8]", "", (8, 8), 1),
}


def numbers(array: np.ndarray) -> str:
    """An array in ONNX text."""
    return ", ".join(f"{value:.9g}" for value in array.reshape(-1))


def linear(op: str, channels: np.ndarray) -> str:
    """One operator, the weights of whose output channels are multiplied by these numbers."""
    data, attributes, shape, axis = LINEAR[op]
    weight = np.random.default_rng(0).standard_normal(shape) * channels.reshape(
        [-1 if i == axis else 1 for i in range(len(shape))]
    )
    bias = np.where(channels == 0, 0.3, 0.0)
    constants = f"float{list(shape)} w = {{{numbers(weight)}}}, float[8] b = {{{numbers(bias)}}}"
    inputs = "x, w" if op == "MatMul" else "x, w, b"
    out = data.replace("8,8,8]", "8,h,v]")  # the size depends on the operator
    return f"g ({data} x) => ({out} z) <{constants}> {{ y = {op}{attributes}({inputs})  z = Neg(y) }}"
