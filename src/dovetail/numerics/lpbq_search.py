"""Search for the scales of expanded blocks with the least squared error of the weight."""

from __future__ import annotations

import numpy as np

from dovetail.encoding import (
    Array,
    Encoding,
    Granularity,
    QParams,
    effective_scale,
    expanded_qparams,
    int_scale_dtype,
)
from dovetail.numerics.block import from_groups, normal_axis, to_groups
from dovetail.numerics.group_error import group_error

# Factors of a channel's scale, and integers beside the closest one of a block, that are tried.
_FACTORS = (1.0, 0.88, 0.94, 1.06, 1.12)
_NEAR = (0, -1, 1, -2)


def search_integers(weight: Array, params: QParams) -> QParams:
    """Expanded blocks of a weight -> those near them with the least error, per channel.

    The largest block of a channel keeps the largest integer: from the effective scales alone, as HTP's provider gets
    them, the scale of the channel can be computed only then.
    """
    if params.int_scale is None or params.channel_scale is None or params.axis is None:
        raise ValueError("only expanded blocks have integer scales")
    axis, most = normal_axis(params.axis, weight.ndim), 1 << params.encoding.scale_bits
    groups = to_groups(weight, params.encoding, axis)
    first = params.int_scale == params.int_scale.max(axis=axis, keepdims=True)
    largest = first & (np.cumsum(first, axis=axis) == 1)
    best_channel, best_integers = params.channel_scale, params.int_scale
    least = np.full(params.channel_scale.shape, np.inf)
    for factor in _FACTORS:
        channel = params.channel_scale * np.float32(factor)
        integers, errors = _closest(groups, weight.shape, params, channel, np.where(largest, most, 0))
        total = errors.sum(axis=axis, keepdims=True)
        better = total < least
        least = np.where(better, total, least)
        best_channel = np.where(better, channel, best_channel)
        best_integers = np.where(better, integers, best_integers)
    return expanded_qparams(params.encoding, best_channel, best_integers, axis)


def _closest(
    groups: Array, shape: tuple[int, ...], params: QParams, channel: Array, fixed: Array
) -> tuple[Array, Array]:
    """The integer scales with the least error for these scales per channel, and the errors; ``fixed`` where not 0."""
    most = 1 << params.encoding.scale_bits
    nearest = np.rint(params.scale / channel)
    integers, least = np.zeros_like(params.scale, np.uint16), np.full(params.scale.shape, np.inf)
    for offset in _NEAR:
        candidate = np.where(fixed, fixed, np.clip(nearest + offset, 1, most)).astype(np.uint16)
        errors = _errors(groups, shape, params.encoding, effective_scale(candidate, channel), params.axis)
        better = errors < least
        integers, least = np.where(better, candidate, integers), np.where(better, errors, least)
    return integers.astype(int_scale_dtype(params.encoding.scale_bits)), least


def _errors(groups: Array, shape: tuple[int, ...], encoding: Encoding, scale: Array, axis: int | None) -> Array:
    """The squared error of every block, in the shape of the scale."""
    per_row = Encoding(encoding.dtype, True, Granularity.AXIS)
    rows = np.moveaxis(scale, axis or 0, -1).reshape(-1)
    errors = group_error(groups, rows, np.zeros(rows.shape, np.int32), per_row)
    return from_groups(errors, shape, encoding, axis)
