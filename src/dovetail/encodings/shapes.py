"""What only the model says about its tensors: which are parameters, their shapes, channel axes and block axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, Granularity
from dovetail.encodings.records import Encodings, TensorEncoding
from dovetail.encodings.values import bad
from dovetail.model.edit import constant_of, input_axis
from dovetail.model.origin import each_value
from dovetail.model.read import Shapes, read
from dovetail.plan.blocks import WEIGHT
from dovetail.plan.qparams import channel_axis

# Operators whose weight has input and output channels.
LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A tensor of the model; the axes of a weight are those of its consumer, None where it has none or several."""

    is_parameter: bool
    shape: tuple[int, ...] | None = None
    channel_axis: int | None = None
    block_axis: int | None = None


def model_tensors(model: ir.Model) -> dict[str, ModelTensor]:
    """The tensors of a model, by name."""
    tensors = {}
    for value in each_value(model.graph):
        array = constant_of(value)
        if array is None:
            tensors[str(value.name)] = ModelTensor(False)
            continue
        axes = {_axes(node, index, array.ndim) for node, index in value.uses()}
        channel, block = axes.pop() if len(axes) == 1 else (None, None)
        tensors[str(value.name)] = ModelTensor(True, tuple(array.shape), channel, block)
    return tensors


def read_model_tensors(path: Path, shapes: Shapes) -> dict[str, ModelTensor]:
    """The tensors of a model file, by name."""
    return model_tensors(read(path, shapes))


def _axes(node: ir.Node, index: int, rank: int) -> tuple[int | None, int | None]:
    """(axis of the output channels, axis of the blocks) of a constant at one consumer."""
    if node.op_type in LINEAR and index == WEIGHT and rank > 1:
        return channel_axis(node, index, rank), input_axis(node, rank)
    return (0, None) if rank == 1 else (None, None)


def with_model(encodings: Encodings, tensors: Mapping[str, ModelTensor]) -> Encodings:
    """The same encodings with axes and nested blocks; entries of tensors that the model does not have are as before."""
    entries = {n: e if n not in tensors else _with_tensor(e, tensors[n]) for n, e in encodings.entries.items()}
    return replace(encodings, entries=entries)


def _with_tensor(entry: TensorEncoding, tensor: ModelTensor) -> TensorEncoding:
    entry = replace(entry, is_parameter=tensor.is_parameter)
    if entry.granularity is Granularity.TENSOR:
        return entry
    if tensor.shape is None:
        raise bad(entry.name, f"it has {entry.scale.size} scales, but only constants can be quantized per channel")
    if entry.granularity is Granularity.AXIS:
        return replace(entry, axis=_channel_axis(entry, tensor.shape, tensor.channel_axis))
    return _with_blocks(entry, tensor, tensor.shape)


def _channel_axis(entry: TensorEncoding, shape: tuple[int, ...], axis: int | None) -> int:
    """The axis of a per-channel entry; it must have as many scales as the tensor has channels."""
    size, rank = entry.scale.size, len(shape)
    if entry.axis is not None:
        axis = entry.axis
    elif axis is None:
        fitting = [i for i in range(rank) if shape[i] == size]
        if len(fitting) != 1:
            raise bad(entry.name, f"the axis of its {size} scales is unknown in a tensor of shape {list(shape)}")
        axis = fitting[0]
    if not -rank <= axis < rank or shape[axis] != size:
        raise bad(entry.name, f"it has {size} scales on axis {axis}, but the tensor has shape {list(shape)}")
    return axis % rank


def _with_blocks(entry: TensorEncoding, tensor: ModelTensor, shape: tuple[int, ...]) -> TensorEncoding:
    """The entry with scales of the tensor's rank: of size 1 on every axis but those of channels and blocks."""
    channel, block = tensor.channel_axis, tensor.block_axis
    counted = entry.scale if entry.int_scale is None else entry.int_scale
    if entry.axis is not None:
        expected = (*shape[: entry.axis], _blocks(entry, shape, entry.axis), *shape[entry.axis + 1 :])
        axes = enumerate(zip(counted.shape, expected, strict=False))
        if len(counted.shape) != len(shape) or any(n != m and (n > 1 or i == entry.axis) for i, (n, m) in axes):
            raise bad(entry.name, f"blocks of shape {list(counted.shape)} do not fit a tensor of shape {list(shape)}")
        return entry
    if channel is None or block is None:
        raise bad(entry.name, "it has blocks, but is not the weight of one Conv, ConvTranspose, Gemm or MatMul")
    channels, blocks = shape[channel], _blocks(entry, shape, block)
    if counted.size != channels * blocks:
        raise bad(
            entry.name,
            f"it has {counted.size} blocks; {channels} output channels of {shape[block]} inputs in blocks of "
            f"{entry.block_size} are {channels * blocks}",
        )
    if entry.int_scale is not None and entry.scale.size != channels:
        raise bad(entry.name, f"it has {entry.scale.size} scales per channel for {channels} output channels")

    def nested(flat: Array) -> Array:
        return _from_channels(flat.reshape(channels, -1), channel, block, len(shape))

    return replace(
        entry,
        axis=block,
        scale=nested(entry.scale),
        zero_point=nested(entry.zero_point),
        int_scale=None if entry.int_scale is None else nested(entry.int_scale),
    )


def _blocks(entry: TensorEncoding, shape: tuple[int, ...], axis: int) -> int:
    if axis >= len(shape) or shape[axis] % entry.block_size:
        raise bad(entry.name, f"blocks of {entry.block_size} do not divide a tensor of shape {list(shape)}")
    return shape[axis] // entry.block_size


def _from_channels(array: Array, channel: int, block: int, rank: int) -> Array:
    """Shape (channels, blocks) -> the tensor's rank."""
    ordered = array if channel < block else array.T
    shape = [1] * rank
    shape[channel], shape[block] = array.shape
    return np.array(ordered.reshape(shape))


def without_shape(entry: TensorEncoding, tensor: ModelTensor) -> TensorEncoding | None:
    """The entry as files below 2.0.0 have it, without axis; None where its axes are not those that they imply."""
    if entry.granularity is Granularity.TENSOR:
        return entry
    if entry.granularity is Granularity.AXIS:
        implied = tensor.channel_axis
        if implied is None and tensor.shape is not None and tensor.shape.count(entry.scale.size) == 1:
            implied = tensor.shape.index(entry.scale.size)
        return replace(entry, axis=None) if entry.axis == implied else None
    channel, block = tensor.channel_axis, tensor.block_axis
    counted = entry.scale if entry.int_scale is None else entry.int_scale
    if channel is None or block is None or entry.axis != block:
        return None
    if any(size > 1 for axis, size in enumerate(counted.shape) if axis not in (channel, block)):
        return None  # scales that differ along a third axis

    def flat(array: Array) -> Array:
        return np.moveaxis(array, (channel, block), (0, 1)).reshape(-1)

    return replace(
        entry,
        axis=None,
        scale=flat(entry.scale),
        zero_point=flat(entry.zero_point),
        int_scale=None if entry.int_scale is None else flat(entry.int_scale),
    )
