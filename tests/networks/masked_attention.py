"""Attention whose mask is computed from a boolean input, in one of several ways."""

from __future__ import annotations

import numpy as np
import onnx

_TEXT = """<ir_version: 10, opset_import: ["": 21]>
attention (float[1,4,8] q, float[1,4,8] k, bool[1,1,4] mask) => (float[1,4,8] y)
<float one = {{1}}, float lowest = {{{lowest}}}>
{{
    t = Transpose<perm = [0,2,1]>(k)  scores = MatMul(q, t)
    {body}
    p = Softmax<axis = -1>(masked)  y = MatMul(p, k)
}}
"""
FORMS = (
    "masked = Where(mask, scores, lowest)",
    "c = Cast<to = 1>(mask)  d = Sub(one, c)  added = Mul(d, lowest)  masked = Add(scores, added)",
)


def masked_attention(body: str, lowest: str) -> onnx.ModelProto:
    """``body`` computes ``masked`` from ``scores``, ``mask`` and ``lowest``."""
    return onnx.parser.parse_model(_TEXT.format(body=body, lowest=lowest))


def masked_samples() -> dict[str, np.ndarray]:
    """Sixteen samples; in the first one all keys are masked."""
    random = np.random.default_rng(0)
    data = {name: random.standard_normal((16, 4, 8)).astype(np.float32) for name in ("q", "k")}
    data["mask"] = random.random((16, 1, 4)) < 0.7
    data["mask"][0] = False
    return data
