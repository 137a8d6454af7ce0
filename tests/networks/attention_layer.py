"""One attention layer in text form, optionally with what prevents a fused kernel."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from tests.equality import model_from, normal

LAYER = """g (float[1,{queries},{width}] x, float[{second}] c) => (float[1,{queries},{width}] y)
<int64[4] per_query = {{1,{queries},{heads},{size}}}, int64[4] per_key = {{1,{keys},{heads},{size}}},
 int64[3] flat = {{1,{queries},{width}}}, float factor = {{{factor}}}, float zero = {{0}}>
{{ n = LayerNormalization<axis = -1>(x, ones, bias)
  [to_q] q0 = MatMul(n, wq) q1 = Add(q0, bias) q2 = Reshape(q1, per_query) q3 = Transpose<perm = [0,2,1,3]>(q2)
  q = Mul(q3, factor)
  [to_k] k0 = MatMul({source}, wk) k1 = Add(k0, bias) k2 = Reshape(k1, per_key) k = Transpose<perm = [0,2,3,1]>(k2)
  [to_v] v0 = MatMul({source}, wv) v1 = Add(v0, bias) v2 = Reshape(v1, per_key) v = Transpose<perm = [0,2,1,3]>(v2)
  [scores] s0 = MatMul(q, k) {mask} p0 = Softmax<axis = -1>({masked}) {guard}
  [mix] o = MatMul({probabilities}, v) o1 = Transpose<perm = [0,2,1,3]>(o) o2 = Reshape(o1, flat)
  [out] z0 = MatMul(o2, wo) z = Add(z0, bias) y = Add(z, x) }}"""


def layer(
    tokens: int = 64,
    size: int = 32,
    keys: int | None = None,
    *,
    masked: bool = False,
    mask_is_input: bool = False,
    guarded: bool = False,
) -> ir.Model:
    """Pre-norm attention with a residual, over its own rows or ``keys`` rows of ``c``; a mask is constant or ``c``."""
    width, heads = 2 * size, 2
    table = "c" if mask_is_input else "table"
    text = LAYER.format(
        second=f"1,1,{tokens},{tokens}" if mask_is_input else f"1,{keys or tokens},{width}",
        queries=tokens,
        keys=keys or tokens,
        width=width,
        heads=heads,
        size=size,
        factor=1 / math.sqrt(size),
        source="n" if keys is None else "c",
        mask=f"s1 = Add(s0, {table})" if masked else "",
        masked="s1" if masked else "s0",
        guard="bad = IsNaN(p0) p = Where(bad, zero, p0)" if guarded else "",
        probabilities="p" if guarded else "p0",
    )
    weights = {name: normal(width, width, seed=i) / math.sqrt(width) for i, name in enumerate(("wq", "wk", "wv", "wo"))}
    if masked and not mask_is_input:
        weights["table"] = normal(1, heads, tokens, keys or tokens)
    return model_from(text, ones=np.ones(width, np.float32), bias=normal(width), **weights)
