"""Graphs of a few nodes that several tests plan."""

from __future__ import annotations

LINEAR = """
g (float[1,6,4] x) => (float[1,6,2] z)
<float[4,4] w = {1,-2,3,4, 5,6,-7,8, 9,1,2,3, -4,5,6,7}, float[4] b = {0.5,-1,0.25,2}, float[4,2] v = {1,2,3,4,5,6,7,8}>
{
    m = MatMul(x, w)
    h = Add(m, b)
    t = Transpose <perm = [0, 2, 1]> (h)
    u = Transpose <perm = [0, 2, 1]> (t)
    r = Relu(u)
    z = MatMul(r, v)
}
"""
# Two products; the first one's result hardly reaches the output, and its K is read by somebody else too.
TWO_PRODUCTS = """
g (float[1,2,8,16] q, float[1,2,16,8] k, float[1,2,8,16] v) => (float[1,2,8,16] y, float[1,2,16,8] other)
<float small = {0.0001}>
{
    s = MatMul(q, k)
    t = Mul(s, small)
    q2 = Relu(q)
    k2 = Transpose <perm = [0, 1, 3, 2]> (q2)
    s2 = MatMul(v, k2)
    w = Add(t, s2)
    y = MatMul(w, v)
    other = Relu(k)
}
"""
