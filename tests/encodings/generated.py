"""Encodings that hypothesis generates, with the tensors of a model that they fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from dovetail.encoding import Granularity
from dovetail.encodings.records import Encodings, TensorEncoding
from dovetail.encodings.shapes import ModelTensor

SCALES = st.floats(1e-30, 1e30, allow_subnormal=False)
# Shapes of weights with the axes of their output channels and of their blocks: Conv, Gemm with transB, MatMul.
WEIGHTS = (((6, 8, 1, 1), 0, 1), ((6, 8), 0, 1), ((8, 6), 1, 0), ((2, 8, 6), 2, 1))
BLOCK_SIZES = (1, 2, 4, 8)


def _numbers(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape))
    return np.array(draw(st.lists(SCALES, min_size=count, max_size=count))).reshape(shape)


@st.composite
def activations(draw: st.DrawFn, name: str, floats: bool) -> TensorEncoding:
    bits = draw(st.sampled_from((4, 8, 16)))
    if floats and draw(st.booleans()):
        return TensorEncoding(name, draw(st.sampled_from((16, 32))), False, is_float=True)
    entry = TensorEncoding(name, bits, False, scale=_numbers(draw, ()))
    if draw(st.booleans()):
        return replace(entry, signed=True, symmetric=True)
    return replace(entry, zero_point=np.asarray(draw(st.integers(0, (1 << bits) - 1)), np.int64))


@st.composite
def parameters(draw: st.DrawFn, name: str, blocks: bool) -> tuple[TensorEncoding, ModelTensor]:
    shape, channel, block = draw(st.sampled_from(WEIGHTS))
    kinds = list(Granularity) if blocks else [Granularity.TENSOR, Granularity.AXIS]
    granularity = draw(st.sampled_from(kinds))
    size = draw(st.sampled_from(BLOCK_SIZES)) if granularity in kinds[2:] else 0
    entry = TensorEncoding(
        name, draw(st.sampled_from((4, 8))), True, granularity=granularity, signed=True, symmetric=True, block_size=size
    )
    tensor = ModelTensor(True, shape, channel, block)
    if granularity is Granularity.TENSOR:
        return replace(entry, scale=_numbers(draw, ())), tensor
    if granularity is Granularity.AXIS:
        zeros = np.zeros(shape[channel], np.int64)
        return replace(entry, scale=_numbers(draw, (shape[channel],)), zero_point=zeros, axis=channel), tensor
    nested = [1] * len(shape)
    nested[channel], nested[block] = shape[channel], shape[block] // size
    scale, zeros = _numbers(draw, tuple(nested)), np.zeros(nested, np.int64)
    if granularity is Granularity.BLOCK:
        return replace(entry, scale=scale, zero_point=zeros, axis=block), tensor
    seed = draw(st.integers(0, 1000))
    int_scale = np.random.default_rng(seed).integers(1, (1 << entry.bits) + 1, nested)
    nested[block] = 1
    channel_scale = _numbers(draw, tuple(nested))
    return replace(
        entry, scale=channel_scale, zero_point=zeros, axis=block, int_scale=int_scale, expanded_bits=2 * entry.bits
    ), tensor


@st.composite
def encodings(draw: st.DrawFn, *, blocks: bool = True, floats: bool = True) -> tuple[Encodings, dict[str, ModelTensor]]:
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5, unique=True))
    entries, tensors = {}, {}
    for name in names:
        if draw(st.booleans()):
            entries[name], tensors[name] = draw(activations(name, floats)), ModelTensor(False)
        else:
            entries[name], tensors[name] = draw(parameters(name, blocks))
    return Encodings("2.0.0", entries), tensors
