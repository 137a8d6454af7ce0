"""One generated case: a small float graph and the samples to calibrate it on, from a seed and an index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from dovetail.encoding import Array
from dovetail.sweep.blocks import BLOCKS
from dovetail.sweep.blocks.activations import usual_activation
from dovetail.sweep.blocks.convolutions import conv, width
from dovetail.sweep.blocks.kind import IMAGE, TOKENS, Block
from dovetail.sweep.draw import Draw
from dovetail.sweep.graph_builder import GraphBuilder, Tensor

SAMPLES = 4
# Below this height or width, no further block is added.
_SMALLEST = 6
# Above this number of nodes, no further block is added.
_MOST_NODES = 40


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A float model, per input an array with one sample per row, and the kinds of its blocks."""

    model: onnx.ModelProto
    samples: Mapping[str, Array]
    kinds: tuple[str, ...]


def make_case(seed: int, index: int) -> Case:
    """The case of a seed with this index; every kind of block is the main one of equally many cases."""
    draw = Draw(f"dovetail sweep {seed} {index}")
    main = _main_block(seed, index)
    b = GraphBuilder(draw)
    x = source = _input(b, main.rank)
    kinds: list[str] = []
    if main.rank == IMAGE and draw.chance(0.5):
        x = usual_activation(b, conv(b, x, width(b)))
        kinds.append("stem")
    taps: list[Tensor] = []
    for block in (main, *draw.sample(list(BLOCKS.values()), draw.choice((0, 0, 1, 1, 2)))):
        if len(x.shape) != block.rank or (kinds and _is_full(b, x)):
            continue
        x = block.build(b, x)
        kinds.append(block.name)
        taps.append(x)
    outputs = [x, *(tap for tap in taps[:-1] if draw.chance(0.3) and tap != x)]
    return Case(b.model(outputs), {source.name: _samples(draw, source)}, tuple(kinds))


def _main_block(seed: int, index: int) -> Block:
    """All kinds in turn, in an order of each round's own."""
    turn, place = divmod(index, len(BLOCKS))
    names = Draw(f"dovetail sweep {seed} round {turn}").sample(sorted(BLOCKS), len(BLOCKS))
    return BLOCKS[names[place]]


def _is_full(b: GraphBuilder, x: Tensor) -> bool:
    return b.node_count > _MOST_NODES or (len(x.shape) == IMAGE and min(x.shape[2:]) < _SMALLEST)


def _input(b: GraphBuilder, rank: int) -> Tensor:
    """Sizes of which most are no powers of two; a batch of 1 or 4."""
    batch = b.draw.choice((1, 1, 1, 4))
    if rank == TOKENS:
        return b.input(batch, b.draw.choice((7, 10, 16, 17, 25, 33, 49, 50)), b.draw.choice((12, 16, 20, 24, 33, 48)))
    channels = b.draw.choice((3, 3, 4, 6, 8, 11, 16, 20, 24))
    return b.input(batch, channels, b.draw.between(8, 26), b.draw.between(8, 26))


def _samples(draw: Draw, x: Tensor) -> Array:
    """Samples as activations are: a mean per channel, values that vary slowly between places, and noise."""
    shape = (SAMPLES, *x.shape)
    channel_axis = 2 if len(x.shape) == IMAGE else 3
    per_channel = [1] * len(shape)
    per_channel[channel_axis] = shape[channel_axis]
    means, spread = draw.normal(*per_channel), draw.uniform(0.3, 1.5, *per_channel)
    noise = draw.normal(*shape, std=0.6)
    slow = draw.normal(*shape)
    if len(x.shape) == IMAGE:
        slow = np.repeat(np.repeat(slow[..., ::4, ::4], 4, axis=3), 4, axis=4)[..., : x.shape[2], : x.shape[3]]
    values: Array = (slow + noise) * spread + means
    return values if draw.chance(0.7) else np.maximum(values, np.float32(0))
