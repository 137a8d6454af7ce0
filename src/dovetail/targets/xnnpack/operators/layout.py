"""Mappings of operators that move, slice, concatenate and select elements.

Every change of shape is a reshape to constant sizes, and every cut is a slice with step 1, because XNNPACK supports
these; select, squeeze, split and chunk are not delegated (executorch 1.5.1).
"""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np

from dovetail.encoding import Array
from dovetail.targets.xnnpack.operators.padding import zero
from dovetail.targets.xnnpack.operators.registry import Call, Function, Tensor, operator, torch


@operator("Reshape", "Flatten", "Squeeze", "Unsqueeze", constants=(1,))
def reshape(call: Call) -> Function:
    shape = call.output_shape()
    return lambda x, *_: torch.reshape(x, shape)


@operator("Transpose")
def transpose(call: Call) -> Function:
    perm = tuple(call.attribute("perm", tuple(reversed(range(len(call.shape()))))))
    return lambda x: torch.permute(x, perm)


@operator("Concat")
def concat(call: Call) -> Function:
    axis = call.axis(0)
    return lambda *tensors: torch.cat(tensors, axis)


def cut(x: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """Slice along one axis."""
    return torch.ops.aten.slice.Tensor(x, axis, start, stop, step)


@operator("Split", constants=(1,))
def split(call: Call) -> Function:
    axis = call.axis(0)
    sizes = [call.output_shape(i)[axis] for i in range(len(call.node.outputs))]
    ends = list(itertools.accumulate(sizes))
    return lambda x, *_: tuple(cut(x, axis, end - size, end) for size, end in zip(sizes, ends, strict=True))


@operator("Slice", constants=(1, 2, 3, 4))
def slices(call: Call) -> Function:
    starts, ends = call.constant(1), call.constant(2)
    if starts is None or ends is None:
        raise call.unsupported("its bounds must be constants")
    shape, axes, steps = call.shape(), call.constant(3), call.constant(4)
    dims = range(len(starts)) if axes is None else [int(axis) % len(shape) for axis in axes]
    step_sizes = [1] * len(starts) if steps is None else steps.tolist()
    cuts = []
    for axis, start, end, step in zip(dims, starts.tolist(), ends.tolist(), step_sizes, strict=True):
        selected = range(shape[axis])[start:end:step]
        if len(selected) != shape[axis] or step != 1:
            cuts.append((axis, selected))
    return partial(_slices, cuts=cuts)


def _slices(x: Tensor, *_: Tensor, cuts: list[tuple[int, range]]) -> Tensor:
    for axis, selected in cuts:
        ordered = selected if selected.step > 0 else selected[::-1]
        x = cut(x, axis, ordered.start, ordered[-1] + 1 if ordered else ordered.start, ordered.step)
        x = x if selected.step > 0 else torch.flip(x, [axis])
    return x if cuts else x.clone()


@operator("Gather")
def gather(call: Call) -> Function:
    axis, shape = call.axis(0), call.output_shape()
    indices = call.constant(1)
    if indices is None:
        return lambda x, i: torch.index_select(x, axis, _flat_indices(i, call.shape()[axis])).reshape(shape)
    selected = indices.reshape(-1) % call.shape()[axis]
    bounds = _consecutive(selected)
    if bounds is not None:
        return lambda x, *_: cut(x, axis, bounds[0], bounds[1]).reshape(shape)
    return lambda x, i: torch.index_select(x, axis, _flat_indices(i, call.shape()[axis])).reshape(shape)


def _flat_indices(indices: Tensor, size: int) -> Tensor:
    """Non-negative indices, flattened."""
    flat = indices.reshape(-1)
    return torch.where(flat < 0, flat + size, flat)


def _consecutive(indices: Array) -> tuple[int, int] | None:
    """The bounds of consecutive indices; None if they are not consecutive."""
    if indices.size and np.array_equal(indices, np.arange(indices[0], indices[0] + indices.size)):
        return int(indices[0]), int(indices[0]) + indices.size
    return None


@operator("GatherElements")
def gather_elements(call: Call) -> Function:
    axis, non_negative = call.axis(0), _non_negative(call)
    return lambda x, i: torch.gather(x, axis, non_negative(i))


def _non_negative(call: Call) -> Function:
    """The function that makes the indices of a node non-negative, as torch requires."""
    indices, size = call.constant(1), call.shape()[call.axis(0)]
    if indices is not None and (indices >= 0).all():
        return lambda i: i
    return lambda i: torch.where(i < 0, i + size, i)


@operator("GatherND")
def gather_nd(call: Call) -> Function:
    batch = int(call.attribute("batch_dims", 0))
    if batch:
        raise call.unsupported("batch_dims is not supported")
    return lambda x, i: x[tuple(i.unbind(-1))]


@operator("ScatterElements")
def scatter_elements(call: Call) -> Function:
    axis, reduction, non_negative = call.axis(0), str(call.attribute("reduction", "none")), _non_negative(call)
    if reduction == "none":
        return lambda x, i, update: torch.scatter(x, axis, non_negative(i), update)
    if reduction == "add":
        return lambda x, i, update: torch.scatter_add(x, axis, non_negative(i), update)
    raise call.unsupported(f"reduction {reduction!r} is not supported")


@operator("ScatterND")
def scatter_nd(call: Call) -> Function:
    if str(call.attribute("reduction", "none")) != "none":
        raise call.unsupported("a reduction is not supported")
    return lambda x, i, update: torch.index_put(x, tuple(i.unbind(-1)), update)


@operator("Pad", constants=(1, 2, 3))
def pad(call: Call) -> Function:
    pads, value, axes = call.constant(1), call.constant(2), call.constant(3)
    if pads is None:
        raise call.unsupported("its pads must be constants")
    rank, half = len(call.shape()), len(pads) // 2
    dims = range(rank) if axes is None else [int(axis) % rank for axis in axes]
    per_axis = dict(zip(dims, zip(pads[:half].tolist(), pads[half:].tolist(), strict=True), strict=True))
    amounts = [int(amount) for axis in reversed(range(rank)) for amount in per_axis.get(axis, (0, 0))]
    while len(amounts) > 2 and amounts[-2:] == [0, 0]:
        amounts = amounts[:-2]
    mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    name = mode[str(call.attribute("mode", "constant"))]
    if name != "constant":
        amounts += [0] * (2 * (rank - 2) - len(amounts))  # torch requires amounts for all spatial axes
        return lambda x, *_: torch.nn.functional.pad(x, amounts, name)
    fill = (0.0 if value is None else float(value.reshape(()))) or zero(call)
    return lambda x, *_: torch.nn.functional.pad(x, amounts, name, fill)


@operator("DepthToSpace")
def depth_to_space(call: Call) -> Function:
    n, c, h, w = call.shape()
    size, shape = int(call.attribute("blocksize", 1)), call.output_shape()
    if str(call.attribute("mode", "DCR")) == "DCR":
        blocks, perm = (n, size, size, c // size**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        blocks, perm = (n, c // size**2, size, size, h, w), (0, 1, 4, 2, 5, 3)
    return lambda x: x.reshape(blocks).permute(perm).reshape(shape)


@operator("SpaceToDepth")
def space_to_depth(call: Call) -> Function:
    n, c, h, w = call.shape()
    size, shape = int(call.attribute("blocksize", 1)), call.output_shape()
    return lambda x: x.reshape(n, c, h // size, size, w // size, size).permute(0, 3, 5, 1, 2, 4).reshape(shape)
