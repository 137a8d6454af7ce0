"""The qparams of a constant that passes have moved: transposed, reshaped, sliced, or its channels multiplied."""

from __future__ import annotations

import numpy as np

from dovetail.encoding import Array, Granularity, QParams, expanded_qparams

# Products in float32 differ in their last digit.
_RTOL = 1e-5


def of_moved_constant(original: Array, params: QParams, array: Array, computed: QParams) -> QParams | None:
    """The qparams of ``original`` for ``array``, if that has its values, or those of some of its channels in a row.

    A channel that was multiplied by a factor has its scale multiplied too, which gives the same integers. ``computed``:
    qparams of ``array`` in the encoding that is needed; None where ``params`` are not in that encoding or the values
    are others.
    """
    same = (params.dtype, params.encoding.granularity, params.encoding.block_size) == (
        computed.dtype,
        computed.encoding.granularity,
        computed.encoding.block_size,
    )
    if not same or (computed.encoding.symmetric and params.zero_point.any()):
        return None
    if params.encoding.granularity is Granularity.TENSOR:
        same_values = np.array_equal(np.sort(original, axis=None), np.sort(array, axis=None))
        return QParams(computed.encoding, params.scale, params.zero_point) if same_values else None
    from_axis, to_axis = _channel_axis(params, original.shape), _channel_axis(computed, array.shape)
    if from_axis is None or to_axis is None:
        return None
    rows, wanted = _rows(original, from_axis), _rows(array, to_axis)
    if rows.shape[1] != wanted.shape[1] or not len(wanted):
        return None
    for start in range(0, len(rows) - len(wanted) + 1, len(wanted)):
        channels = slice(start, start + len(wanted))
        factors = _factors(rows[channels], wanted)
        if factors is not None:
            return _of_channels(params, computed, from_axis, to_axis, channels, factors)
    return None


def _channel_axis(params: QParams, shape: tuple[int, ...]) -> int | None:
    """The axis of the channels that have scales of their own; of blocks, only for matrices, also as 1 x 1 kernels."""
    if params.encoding.granularity is Granularity.AXIS:
        return params.axis
    if params.encoding.is_blocked and params.axis in (0, 1) and (len(shape) == 2 or shape[2:] == (1, 1)):
        return 1 - params.axis
    return None


def _rows(array: Array, axis: int) -> Array:
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def _factors(rows: Array, wanted: Array) -> Array | None:
    """What each row was multiplied by, exactly 1 where it is unchanged; None if a row is not a positive multiple."""
    largest = np.abs(rows).argmax(axis=1)[:, None]
    before, after = (np.take_along_axis(a, largest, axis=1)[:, 0].astype(np.float64) for a in (rows, wanted))
    factors = np.divide(after, before, out=np.ones_like(before), where=before != 0)
    factors = np.where(np.all(rows == wanted, axis=1), 1.0, factors)
    if np.any(factors <= 0):
        return None
    error = np.abs(rows * factors[:, None] - wanted).max(axis=1)
    return factors if np.all(error <= _RTOL * np.abs(wanted).max(axis=1)) else None


def _of_channels(
    params: QParams, computed: QParams, from_axis: int, to_axis: int, channels: slice, factors: Array
) -> QParams:
    """The scales of some channels, times their factors, in the layout of ``computed``."""

    def moved(scales: Array, times: Array | None = None) -> Array:
        rows = np.moveaxis(scales, 0 if scales.ndim == 1 else from_axis, 0)[channels]
        if times is not None:
            rows = (rows * times.reshape(-1, *[1] * (rows.ndim - 1))).astype(np.float32)
        laid = np.moveaxis(rows, 0, 0 if scales.ndim == 1 else to_axis)
        is_kernel = computed.encoding.is_blocked and laid.ndim < computed.scale.ndim
        return laid[:, :, None, None] if is_kernel else laid

    if params.int_scale is not None and params.channel_scale is not None and computed.axis is not None:
        channel = moved(params.channel_scale, factors)
        return expanded_qparams(params.encoding, channel, moved(params.int_scale), computed.axis)
    return QParams(params.encoding, moved(params.scale, factors), moved(params.zero_point), computed.axis)
