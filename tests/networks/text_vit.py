"""A vision transformer of one layer as ONNX text: [1,3,8,8] -> [1,5]."""

from __future__ import annotations

import numpy as np

_RANDOM = np.random.default_rng(0)


def constant(name: str, *shape: int, size: float = 0.3) -> str:
    numbers = ",".join(f"{number:.4f}" for number in size * _RANDOM.standard_normal(int(np.prod(shape))))
    return f"float[{','.join(map(str, shape))}] {name} = {{{numbers}}}"


# Patches, a class token, one layer of attention with two heads from one projection, a head on the class token.
MODEL = f"""<ir_version: 10, opset_import: ["": 20]>
g (float[1,3,8,8] image) => (float[1,5] logits)
<{constant("pw", 16, 3, 4, 4)}, {constant("pb", 16)}, {constant("token", 1, 1, 16)}, {constant("pos", 1, 5, 16)},
 {constant("qkv", 16, 48)}, {constant("qkvb", 48)}, {constant("pr", 16, 16)}, {constant("prb", 16)},
 {constant("s", 16, size=1)}, {constant("b", 16)}, {constant("hw", 16, 5)}, {constant("hb", 5)},
 int64[3] rows = {{1,16,4}}, int64[4] heads = {{1,5,2,8}}, int64[3] joined = {{1,5,16}}, float scale = {{0.35}},
 int64[3] thirds = {{16,16,16}}, int64 first = {{0}}>
{{
    p = Conv<strides=[4,4], kernel_shape=[4,4]>(image, pw, pb)  f = Reshape(p, rows)  t = Transpose<perm=[0,2,1]>(f)
    c = Concat<axis=1>(token, t)  x = Add(c, pos)
    n = LayerNormalization(x, s, b)  m = MatMul(n, qkv)  a = Add(m, qkvb)  q, k, v = Split<axis=-1>(a, thirds)
    q4 = Reshape(q, heads)  k4 = Reshape(k, heads)  v4 = Reshape(v, heads)
    qt = Transpose<perm=[0,2,1,3]>(q4)  kt = Transpose<perm=[0,2,3,1]>(k4)  vt = Transpose<perm=[0,2,1,3]>(v4)
    sc = MatMul(qt, kt)  ss = Mul(sc, scale)  w = Softmax(ss)  mix = MatMul(w, vt)
    mt = Transpose<perm=[0,2,1,3]>(mix)  mj = Reshape(mt, joined)  o = MatMul(mj, pr)  ob = Add(o, prb)
    y = Add(x, ob)  z = LayerNormalization(y, s, b)  g0 = Gather<axis=1>(z, first)  l = MatMul(g0, hw)
    logits = Add(l, hb)
}}
"""
