"""Blocks of transformers over tokens [N, T, C]."""

from __future__ import annotations

from dovetail.sweep.blocks.activations import (
    decomposed_gelu,
    gelu,
    hard_swish,
    layer_scale,
    quick_gelu,
    relu,
    silu,
    softmax,
    squared_relu,
)
from dovetail.sweep.blocks.attention import attention
from dovetail.sweep.blocks.kind import on_tokens
from dovetail.sweep.blocks.linear import linear
from dovetail.sweep.blocks.movement import slice_of
from dovetail.sweep.blocks.norms import layer_norm
from dovetail.sweep.graph_builder import GraphBuilder, Tensor

_HIDDEN = (gelu, gelu, decomposed_gelu, relu, quick_gelu, silu, hard_swish, squared_relu)


@on_tokens
def self_attention(b: GraphBuilder, x: Tensor) -> Tensor:
    return attention(b, x)


@on_tokens
def cosine_attention(b: GraphBuilder, x: Tensor) -> Tensor:
    """As in SwinV2: keys and queries of length one."""
    return attention(b, x, cosine=True)


@on_tokens
def attention_block(b: GraphBuilder, x: Tensor) -> Tensor:
    y = attention(b, layer_norm(b, x))
    return b.op("Add", x, layer_scale(b, y) if b.draw.chance(0.4) else y)


@on_tokens
def mlp(b: GraphBuilder, x: Tensor) -> Tensor:
    y = b.draw.choice(_HIDDEN)(b, linear(b, layer_norm(b, x), 2 * x.shape[-1]))
    return b.op("Add", x, linear(b, y, x.shape[-1]))


@on_tokens
def gated_mlp(b: GraphBuilder, x: Tensor) -> Tensor:
    """SwiGLU and its relatives."""
    hidden = b.draw.choice((20, 32, 48))
    gate = b.draw.choice((silu, gelu))(b, linear(b, x, hidden, bias=b.draw.chance(0.5)))
    return b.op("Add", x, linear(b, b.op("Mul", gate, linear(b, x, hidden)), x.shape[-1]))


@on_tokens
def class_token(b: GraphBuilder, x: Tensor) -> Tensor:
    """A class token before the others, attention, and the class token alone."""
    batch, _, channels = x.shape
    token = b.draw.normal(batch, 1, channels)
    named = b.op("Mul", slice_of(b, x, 1, 0, 1), token)
    y = attention(b, b.concat([named, x], 1))
    return linear(b, slice_of(b, y, 1, 0, 1), b.draw.choice((7, 10, 24)))


@on_tokens
def token_slices(b: GraphBuilder, x: Tensor) -> Tensor:
    """Every second token and its neighbour side by side, as before sequence layers; one token has no neighbour."""
    if x.shape[1] < 2:
        return linear(b, x, x.shape[-1])
    even = x.shape[1] // 2 * 2
    both = b.concat([slice_of(b, x, 1, 0, even, 2), slice_of(b, x, 1, 1, even, 2)], 2)
    return linear(b, layer_norm(b, both) if b.draw.chance(0.5) else both, x.shape[-1])


@on_tokens
def pooled_head(b: GraphBuilder, x: Tensor) -> Tensor:
    """The mean of all tokens, a norm and a classifier."""
    y = layer_norm(b, b.reduce("ReduceMean", x, (1,)))
    scores = linear(b, y, b.draw.choice((7, 10, 33)))
    return softmax(b, scores) if b.draw.chance(0.4) else scores


@on_tokens
def separable_attention(b: GraphBuilder, x: Tensor) -> Tensor:
    """As in MobileViTv2: one score per token, a context vector, and a product with the values."""
    channels = x.shape[-1]
    scores = softmax(b, linear(b, x, 1), 1)
    context = b.reduce("ReduceSum", b.op("Mul", linear(b, x, channels), scores), (1,))
    return linear(b, b.op("Mul", relu(b, linear(b, x, channels)), context), channels)


@on_tokens
def linear_attention(b: GraphBuilder, x: Tensor) -> Tensor:
    """Without a Softmax over tokens: relu(Q) (relu(K)^T V), as in EfficientViT."""
    size = b.draw.choice((8, 16, 20))
    queries, keys, values = relu(b, linear(b, x, size)), relu(b, linear(b, x, size)), linear(b, x, size)
    context = b.op("MatMul", b.transpose(keys, 0, 2, 1), values, shape=(x.shape[0], size, size))
    return linear(b, b.op("MatMul", queries, context, shape=(*x.shape[:2], size)), x.shape[-1])


@on_tokens
def channel_attention(b: GraphBuilder, x: Tensor) -> Tensor:
    """Attention between channels, as in XCiT and DaViT."""
    queries, keys, values = (linear(b, x, x.shape[-1]) for _ in range(3))
    size = x.shape[-1]
    scores = b.op("MatMul", b.transpose(queries, 0, 2, 1), keys, shape=(x.shape[0], size, size))
    scores = b.op("Mul", scores, b.draw.uniform(0.02, 0.1, 1, 1, 1))
    return b.op("MatMul", values, softmax(b, scores), shape=x.shape)


@on_tokens
def mixer(b: GraphBuilder, x: Tensor) -> Tensor:
    """MLP-Mixer: a linear layer over the tokens of each channel."""
    y = b.transpose(layer_norm(b, x), 0, 2, 1)
    y = linear(b, gelu(b, linear(b, y, b.draw.choice((12, 20)))), x.shape[1])
    return b.op("Add", x, b.transpose(y, 0, 2, 1))
