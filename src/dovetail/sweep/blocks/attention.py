"""Attention over tokens [N, T, C] in the ways that networks and exporters write it."""

from __future__ import annotations

import numpy as np

from dovetail.sweep.blocks.activations import softmax
from dovetail.sweep.blocks.linear import linear
from dovetail.sweep.blocks.norms import l2_norm
from dovetail.sweep.graph_builder import GraphBuilder, Tensor, scalar


def attention(b: GraphBuilder, x: Tensor, *, cosine: bool = False) -> Tensor:
    """Self-attention with an output projection; heads, biases, masks and the place of the scale are drawn."""
    heads, size = b.draw.choice((1, 2, 3, 4)), b.draw.choice((8, 12, 16, 20, 32))
    bias = b.draw.chance(0.7)
    queries, keys, values = _heads(b, x, heads, size, bias)
    scale = scalar(size**-0.5)
    if cosine:
        queries, keys = l2_norm(b, queries, 3), l2_norm(b, keys, 3)
        scale = b.draw.uniform(2.0, 12.0, heads, 1, 1)
    scale_first = b.draw.chance(0.5)
    queries = b.op("Mul", queries, scale) if scale_first else queries
    transposed = b.transpose(keys, 0, 1, 3, 2)
    scores = b.op("MatMul", queries, transposed, shape=(*queries.shape[:3], keys.shape[2]))
    scores = scores if scale_first else b.op("Mul", scores, scale)
    scores = _masked(b, scores)
    mixed = b.op("MatMul", softmax(b, scores), values, shape=(*scores.shape[:3], size))
    batch, tokens = x.shape[:2]
    merged = b.reshape(b.transpose(mixed, 0, 2, 1, 3), batch, tokens, heads * size)
    return linear(b, merged, x.shape[-1], bias=bias)


def _heads(b: GraphBuilder, x: Tensor, heads: int, size: int, bias: bool) -> list[Tensor]:
    """Queries, keys and values [N, heads, T, size], from one projection or from three."""
    batch, tokens, _ = x.shape
    if b.draw.chance(0.5):
        parts = [linear(b, x, heads * size, bias=bias, gain=2.0) for _ in range(3)]
        return [b.transpose(b.reshape(part, batch, tokens, heads, size), 0, 2, 1, 3) for part in parts]
    fused = linear(b, x, 3 * heads * size, bias=bias, gain=2.0)
    fused = b.transpose(b.reshape(fused, batch, tokens, 3, heads, size), 2, 0, 3, 1, 4)
    shape = (batch, heads, tokens, size)
    return [b.op("Gather", fused, np.array(index), shape=shape, axis=0) for index in range(3)]


def _masked(b: GraphBuilder, scores: Tensor) -> Tensor:
    """The scores as they are, with a learned bias per head, or with a mask of large negative numbers."""
    kind = b.draw.choice(("none", "none", "bias", "mask"))
    _, heads, rows, columns = scores.shape
    if kind == "bias":
        return b.op("Add", scores, b.draw.normal(1, heads, rows, columns, std=0.5))
    if kind == "mask":
        blocked = b.draw.uniform(0, 1, 1, 1, rows, columns) < 0.3
        blocked[..., 0] = False
        return b.op("Add", scores, np.where(blocked, np.float32(b.draw.choice((-100.0, -1e4))), np.float32(0)))
    return scores
