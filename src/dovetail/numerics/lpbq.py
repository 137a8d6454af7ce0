"""Scales of expanded blocks (low-power block quantization, LPBQ): a small integer per block times a scale per channel.

The hardware runs such a weight as integers of twice the width with one scale per channel. The formulas are those of
AIMET, whose vectors the tests compare with.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.encoding import Array, Encoding, Granularity, QParams, expanded_qparams, int_scale_dtype
from dovetail.errors import InputError
from dovetail.numerics.block import normal_axis

# The smallest scale of a block whose values are zero or almost zero.
LEAST_BLOCK_SCALE = 2.0**-23
# The most bits of an integer scale: 2 ** 15 and every smaller integer fit uint16.
_MOST_SCALE_BITS = 15


def lpbq_scales(block_scales: Array, *, block_axis: int, scale_bits: int = 4) -> tuple[Array, Array]:
    """Scales of blocks -> (channel_scale, int_scale): channel_scale * int_scale is closest to the given scales.

    ``block_axis``: the axis of ``block_scales`` along which the blocks of one channel are; ``channel_scale`` has the
    shape without it. channel_scale = the largest scale of a channel / 2**scale_bits; int_scale = the ratio, rounded to
    even, from 1 to 2**scale_bits, which the largest block of every channel has. It is uint8, or uint16 if that is too
    small. A channel of which all scales are zero gets 2**scale_bits everywhere.
    """
    scales = np.asarray(block_scales)
    scales = scales if scales.dtype == np.float64 else scales.astype(np.float32)
    if not 1 <= scale_bits <= _MOST_SCALE_BITS:
        raise InputError(f"scale_bits must be from 1 to {_MOST_SCALE_BITS}, not {scale_bits}")
    if scales.ndim < 1 or scales.size == 0:
        raise InputError(f"block scales of shape {scales.shape} have no values")
    wrong = np.argwhere(~np.isfinite(scales) | (scales < 0))
    if wrong.size:
        place = tuple(int(index) for index in wrong[0])
        raise InputError(
            f"block_scales{list(place)} is {scales[place]:g}: every block scale must be finite and not negative"
        )
    axis = normal_axis(block_axis, scales.ndim)
    most = 1 << scale_bits
    largest = scales.max(axis=axis, keepdims=True)
    least = np.finfo(np.float32).tiny * most  # the channel's scale is a normal float32
    channel = np.maximum(np.where(largest == 0, LEAST_BLOCK_SCALE, largest), least).astype(scales.dtype) / most
    ratio = np.where(scales == largest, most, scales / channel)
    integers = np.clip(np.rint(ratio), 1, most).astype(int_scale_dtype(scale_bits))
    return np.squeeze(channel, axis), integers


def expand_blocks(block_scales: Array, encoding: Encoding, axis: int) -> QParams:
    """Scales of plain blocks along ``axis``, in the scale's shape -> qparams of the expanded blocks closest to them."""
    channel, integers = lpbq_scales(block_scales, block_axis=axis, scale_bits=encoding.scale_bits)
    return expanded_qparams(encoding, np.expand_dims(channel, normal_axis(axis, integers.ndim)), integers, axis)


def as_expanded(params: QParams) -> QParams:
    """The expanded blocks closest to plain symmetric blocks; only the scales change, not the quantized values."""
    if params.encoding.granularity is not Granularity.BLOCK or params.axis is None or params.zero_point.any():
        raise InputError("only symmetric blocks with zero points 0 can be expanded")
    encoding = replace(params.encoding, symmetric=True, granularity=Granularity.EXPANDED_BLOCK)
    return expand_blocks(params.scale, encoding, params.axis)


def channel_scales(params: QParams) -> Array:
    """The scale of a weight's integers per channel (or of the whole weight): of blocks, as if they were expanded."""
    if not params.encoding.is_blocked or params.axis is None:
        return params.scale
    if params.channel_scale is not None:
        return params.channel_scale.reshape(-1)
    return np.asarray(params.scale.max(axis=params.axis).reshape(-1) / np.float32(1 << params.dtype.bits))


def raise_channels(params: QParams, least: Array) -> QParams:
    """Blocks whose scales per channel (see ``channel_scales``) are not below ``least``, which has one per channel.

    Only the largest block of such a channel gets a larger scale; the others are expressed in it.
    """
    scales = channel_scales(params)
    if params.axis is None or not np.any(scales < least):
        return params
    steps = 1 << (params.encoding.scale_bits or params.dtype.bits)
    axis = normal_axis(params.axis, params.scale.ndim)
    needed = np.where(scales < least, least * np.float32(steps), 0).astype(np.float32)
    largest = params.scale == params.scale.max(axis=axis, keepdims=True)
    per_channel = np.expand_dims(needed.reshape(params.scale.max(axis=axis).shape), axis)
    raised = np.where(largest, np.maximum(params.scale, per_channel), params.scale)
    if params.encoding.granularity is Granularity.EXPANDED_BLOCK:
        return expand_blocks(raised, params.encoding, params.axis)
    return QParams(params.encoding, raised, params.zero_point, params.axis)
