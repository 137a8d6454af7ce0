"""Weight scales that are not those of the values alone: what the target computes correctly, and what a bias needs.

A larger scale rounds the weights of its channel more coarsely, so only the channels that need it are raised.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.encoding import Array, QParams
from dovetail.model.edit import constant_of
from dovetail.model.origin import origin_of
from dovetail.numerics.bias import bias_overflow, bias_params
from dovetail.numerics.grid import SMALLEST_SCALE
from dovetail.numerics.lpbq import channel_scales, raise_channels
from dovetail.plan.constraints import Operand, Unit
from dovetail.plan.qparams import per_output_channel
from dovetail.storage import Storage

# A scale that is raised so that its int32 bias fits gets this factor on top, for the rounding of the bias.
_MARGIN = 1.01
# The bias of a channel without weights, in steps of its scale: fine enough for 16-bit outputs, far from overflow.
_BIAS_STEPS = 1 << 20


class AdjustedScales(NamedTuple):
    """A weight's qparams with adjusted scales, how many channels were raised, and a text that says why."""

    params: QParams
    raised_channels: int = 0
    detail: str = ""


def adjusted_scales(
    unit: Unit, weight: QParams, array: Array, source: Storage, output: Storage, bias: Operand | None
) -> AdjustedScales:
    """Adjust the scales that are unsuited to the kernel, or to ``bias``, whose scale is derived from them."""
    if not isinstance(source, QParams):
        return AdjustedScales(weight)
    if weight.encoding.is_blocked:
        return _adjusted_blocks(unit, weight, source, output, bias)
    scales = weight.scale if bias is None else _where_only_bias(weight, array, source, bias)
    least = _least(unit, source, output)
    raised = np.maximum(scales, least)
    details = [_text(scales, raised, f"to {float(least):.3g}, the smallest that the target computes correctly")]
    if bias is not None:
        enough = _room_for_bias(unit, QParams(weight.encoding, raised, weight.zero_point, weight.axis), source, bias)
        details.append(_text(raised, enough, "so that its int32 bias fits"))
        raised = enough
    if np.array_equal(raised, weight.scale):
        return AdjustedScales(weight)
    params = QParams(weight.encoding, raised, weight.zero_point, weight.axis)
    return AdjustedScales(params, int(np.count_nonzero(raised > scales)), ", ".join(filter(None, details)))


def _adjusted_blocks(
    unit: Unit, weight: QParams, source: QParams, output: Storage, bias: Operand | None
) -> AdjustedScales:
    """The same for blocks: the scales per channel of which they are multiples are raised."""
    scales, least = channel_scales(weight), _least(unit, source, output)
    raised = raise_channels(weight, np.full(scales.shape, least, np.float32))
    if bias is not None:
        raised = raise_channels(raised, _room_for_bias(unit, raised, source, bias))
    after = channel_scales(raised)
    text = _text(scales, after, "as the target or the int32 bias requires")
    return AdjustedScales(raised, int(np.count_nonzero(after > scales)), text)


def _least(unit: Unit, source: QParams, output: Storage) -> np.float32:
    """The smallest scale that the unit's kernel supports; 0 if it supports all."""
    if unit.support is None or unit.support.least_weight_scale is None:
        return np.float32(0)
    output_scale = float(output.scale) if isinstance(output, QParams) else None
    return np.float32(unit.support.least_weight_scale(source.dtype, float(source.scale), output_scale))


def _where_only_bias(weight: QParams, array: Array, source: QParams, operand: Operand) -> Array:
    """The scales of a weight, where channels of zeros, which any scale represents, have one that suits their bias."""
    bias = _bias_array(operand)
    zero_scales = ~_largest(array, weight).astype(bool)
    if bias is None or not zero_scales.any():
        return weight.scale
    scales = np.array(weight.scale).reshape(-1)
    for index in np.flatnonzero(zero_scales):
        largest = float(np.abs(_of_scale(bias, int(index), scales.size)).max())
        if largest > 0:
            scales[index] = max(largest / (_BIAS_STEPS * float(source.scale)), SMALLEST_SCALE)
    return scales.reshape(weight.scale.shape)


def _room_for_bias(unit: Unit, weight: QParams, source: QParams, operand: Operand) -> Array:
    """The scales of a weight per channel, larger on channels whose bias would otherwise overflow int32."""
    weight_scale, bias = channel_scales(weight), _bias_array(operand)
    if bias is None:
        return weight_scale
    scales = per_output_channel(unit.nodes[0], weight)
    label = bias_label(operand)
    overflow = bias_overflow(bias, bias_params(source.scale, scales, label=label), label=label)
    if overflow is None:
        return weight_scale
    raised = np.array(weight_scale).reshape(-1)
    bias_scales = np.broadcast_to(scales, bias.shape)
    for channel, growth in zip(overflow.channels, overflow.growth, strict=True):
        index = channel % raised.size  # with groups, or per tensor, several output channels share a scale
        raised[index] = max(raised[index], bias_scales[channel] * growth * _MARGIN)
    return raised.reshape(weight_scale.shape)


def _bias_array(operand: Operand) -> Array | None:
    """A bias with one finite value per channel; None for any other."""
    bias = constant_of(operand.value)
    return bias if bias is not None and bias.ndim == 1 and np.all(np.isfinite(bias)) else None


def _of_scale(bias: Array, index: int, scales: int) -> Array:
    """The values of a bias whose channels have one scale of the weight: with groups, or per tensor, several."""
    return np.asarray(bias[index::scales])


def _largest(array: Array, weight: QParams) -> Array:
    """The largest magnitude of a weight for each of its scales."""
    others = None if weight.axis is None else tuple(axis for axis in range(array.ndim) if axis != weight.axis)
    return np.asarray(np.abs(array).max(axis=others, initial=0)).reshape(-1)


def bias_label(operand: Operand) -> str:
    """The bias in error messages, by its original name."""
    return f"bias {origin_of(operand.value).name!r}"


def _text(before: Array, after: Array, purpose: str) -> str:
    raised = int(np.count_nonzero(after > before))
    return f"scales of {raised} of {after.size} channels raised {purpose}" if raised else ""
