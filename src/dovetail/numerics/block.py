"""The elements of a tensor that share one scale: shapes that broadcast, and a tensor as a matrix of groups."""

from __future__ import annotations

import numpy as np

from dovetail.encoding import Array, Encoding, Granularity, QParams
from dovetail.errors import InputError


def scale_shape(shape: tuple[int, ...], encoding: Encoding, axis: int | None) -> tuple[int, ...]:
    """Tensor shape -> the shape of its scale; the last block of an axis may be shorter than the others."""
    if encoding.granularity is Granularity.TENSOR:
        return ()
    at = normal_axis(axis, len(shape))
    if encoding.granularity is Granularity.AXIS:
        return (shape[at],)
    blocks = -(-shape[at] // encoding.block_size)
    return (*shape[:at], blocks, *shape[at + 1 :])


def normal_axis(axis: int | None, rank: int) -> int:
    """The axis as a non-negative index; a negative one counts from the end, as in ONNX."""
    if axis is None or not -rank <= axis < rank:
        raise InputError(f"axis {axis} is out of range for a tensor of rank {rank}")
    return axis % rank


def spread(shape: tuple[int, ...], qparams: QParams) -> tuple[tuple[int, ...], Array, Array]:
    """Tensor shape -> (a shape to view the tensor in, scale, zero point) that broadcast with each other.

    Whole blocks need no copy: the blocked axis is viewed as (blocks, block size). With a short last block the
    scale is repeated for every element instead.
    """
    expected = scale_shape(shape, qparams.encoding, qparams.axis)
    scale, zero_point = qparams.scale, qparams.zero_point
    if scale.shape != expected:
        raise InputError(
            f"the per-{qparams.encoding.granularity} scale of a tensor of shape {shape} must have shape {expected}, "
            f"not {scale.shape}"
        )
    if qparams.encoding.granularity is Granularity.TENSOR:
        return shape, scale, zero_point
    at = normal_axis(qparams.axis, len(shape))
    if qparams.encoding.granularity is Granularity.AXIS:
        column = (-1,) + (1,) * (len(shape) - at - 1)
        return shape, scale.reshape(column), zero_point.reshape(column)
    size = qparams.encoding.block_size
    if shape[at] % size == 0:
        split = (*shape[:at], shape[at] // size, size, *shape[at + 1 :])
        return split, np.expand_dims(scale, at + 1), np.expand_dims(zero_point, at + 1)
    block_of = np.arange(shape[at]) // size
    return shape, scale.take(block_of, axis=at), zero_point.take(block_of, axis=at)


def to_groups(tensor: Array, encoding: Encoding, axis: int | None) -> Array:
    """Tensor -> matrix with one row per scale, in the order in which ``from_groups`` expects them.

    A short last block is padded with zeros: zero is on every grid, so it adds no error.
    """
    if encoding.granularity is Granularity.TENSOR:
        return tensor.reshape(1, -1)
    at = normal_axis(axis, tensor.ndim)
    if encoding.granularity is Granularity.AXIS:
        return np.moveaxis(tensor, at, 0).reshape(tensor.shape[at], -1)
    moved = np.moveaxis(tensor, at, -1)
    missing = -moved.shape[-1] % encoding.block_size
    if missing:
        moved = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, missing)])
    return moved.reshape(-1, encoding.block_size)


def from_groups(per_group: Array, shape: tuple[int, ...], encoding: Encoding, axis: int | None) -> Array:
    """One value per row of ``to_groups`` -> an array of the scale's shape."""
    target_shape = scale_shape(shape, encoding, axis)
    if not encoding.is_blocked:
        return per_group.reshape(target_shape)
    at = normal_axis(axis, len(shape))
    last = (*target_shape[:at], *target_shape[at + 1 :], target_shape[at])
    return np.moveaxis(per_group.reshape(last), -1, at)
