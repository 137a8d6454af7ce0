"""Five linear layers, in which the input of the third has one channel that is much larger than the others."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tests.equality import model_from, normal

_LAYERS = """g (float[1,8,16] x) => (float[1,8,16] y)
{ [first] a = MatMul(x, w1) [second] b = MatMul(a, w2) [scale] c = Mul(b, outlier) [third] d = MatMul(c, w3)
  [fourth] e = MatMul(d, w4) [fifth] y = MatMul(e, w5) }"""


def outlier_layers(size: float, divisor: float) -> ir.Model:
    """``size``: of the large channel. ``divisor``: of the weights that read it."""
    outlier = np.ones(16, np.float32)
    outlier[3] = size
    weights = {f"w{number}": normal(16, 16, seed=number) / np.float32(4) for number in range(1, 6)}
    weights["w3"][3] /= divisor
    return model_from(_LAYERS, outlier=outlier, **weights)


def outlier_samples(count: int) -> dict[str, np.ndarray]:
    """Inputs for it."""
    return {"x": np.random.default_rng(0).standard_normal((count, 1, 8, 16)).astype(np.float32)}
