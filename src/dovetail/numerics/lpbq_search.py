"""Search for the integer scales of expanded blocks, and for the scales of their channels, with the least error."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dovetail.encoding import Array, Encoding, Granularity, QParams, expanded_qparams, int_scale_dtype
from dovetail.numerics.block import from_groups, normal_axis, to_groups
from dovetail.numerics.group_error import group_error

# Factors of a channel's scale, and integers beside the closest one of a block, that are tried.
_FACTORS = (1.0, 0.88, 0.94, 1.06, 1.12)
_NEAR = (0, -1, 1, -2)

# Candidates with the same scales per channel -> the best integers of each block, and errors in the shape of the scales.
Closest = Callable[[Sequence[QParams]], tuple[QParams, Array]]


def search_integers(params: QParams, closest: Closest) -> QParams:
    """Expanded blocks -> those near them with the least error, which is summed over the blocks of a channel.

    The largest block of a channel keeps the largest integer: from the effective scales alone, as HTP's provider gets
    them, the scale of the channel can be computed only then.
    """
    best_integers, best_channel, axis = _levels(params)
    first = best_integers == best_integers.max(axis=axis, keepdims=True)
    largest = first & (np.cumsum(first, axis=axis) == 1)
    channel, least = best_channel, np.full(best_channel.shape, np.inf)
    for factor in _FACTORS:
        found, errors = closest(_near(params, channel * np.float32(factor), largest, axis))
        integers, scale, _ = _levels(found)
        total = errors.sum(axis=axis, keepdims=True)
        better = total < least
        least = np.where(better, total, least)
        best_channel, best_integers = np.where(better, scale, best_channel), np.where(better, integers, best_integers)
    return expanded_qparams(params.encoding, best_channel, best_integers, axis)


def choose_integers(candidates: Sequence[QParams], chosen: Array) -> QParams:
    """Candidates with the same scales per channel, and the number of one per block -> the qparams with its integer."""
    first, channel, axis = _levels(candidates[0])
    integers = np.choose(chosen.reshape(first.shape), [_levels(candidate)[0] for candidate in candidates])
    return expanded_qparams(candidates[0].encoding, channel, integers, axis)


def least_weight_error(weight: Array, encoding: Encoding, axis: int) -> Closest:
    """The integers with the least squared error of the weight."""
    groups = to_groups(weight, encoding, axis)
    per_row = Encoding(encoding.dtype, True, Granularity.AXIS)

    def closest(candidates: Sequence[QParams]) -> tuple[QParams, Array]:
        errors = []
        for candidate in candidates:
            rows = np.moveaxis(candidate.scale, axis, -1).reshape(-1)
            per_group = group_error(groups, rows, np.zeros(rows.shape, np.int32), per_row)
            errors.append(from_groups(per_group, weight.shape, encoding, axis))
        return choose_integers(candidates, np.argmin(errors, axis=0)), np.min(errors, axis=0)

    return closest


def _near(params: QParams, channel: Array, largest: Array, axis: int) -> list[QParams]:
    """Integers near those with which these scales per channel give the scales; the largest block has the largest."""
    bits = params.encoding.scale_bits
    nearest = np.rint(params.scale / channel)
    return [
        expanded_qparams(
            params.encoding,
            channel,
            np.where(largest, 1 << bits, np.clip(nearest + offset, 1, 1 << bits)).astype(int_scale_dtype(bits)),
            axis,
        )
        for offset in _NEAR
    ]


def _levels(params: QParams) -> tuple[Array, Array, int]:
    """The integer scales, the scales of channels, and the axis of the blocks."""
    if params.int_scale is None or params.channel_scale is None or params.axis is None:
        raise ValueError("only expanded blocks have integer scales")
    return params.int_scale, params.channel_scale, normal_axis(params.axis, params.scale.ndim)
