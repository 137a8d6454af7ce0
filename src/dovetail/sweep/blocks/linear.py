"""Linear layers over the last axis."""

from __future__ import annotations

from dovetail.sweep.graph_builder import GraphBuilder, Tensor


def linear(b: GraphBuilder, x: Tensor, size: int, *, bias: bool = True, gain: float = 1.0) -> Tensor:
    """MatMul and Add, as exporters write it; ``gain``: how much larger the output is than the input."""
    weights = b.draw.normal(x.shape[-1], size, std=gain * (1 / x.shape[-1]) ** 0.5)
    y = b.op("MatMul", x, weights, shape=(*x.shape[:-1], size))
    if not bias:
        return y
    offsets = b.draw.normal(size, std=0.3)
    return b.op("Add", y, offsets) if b.draw.chance(0.5) else b.op("Add", offsets, y)
