"""Operators that move, cut, join and choose elements.

Every change of shape is a reshape to plain sizes, and every cut a slice of step one, because XNNPACK takes these;
select, squeeze, split and chunk run outside it (executorch 1.5.1).
"""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np

from dovetail.encoding import Array
from dovetail.qdq.params import is_dequantize
from dovetail.targets.xnnpack.operators.registry import Call, Function, Tensor, operator, torch

# Behind integers that were read back, the lowering makes the result of padding with zeros int8 and leaves its input in
# float, which XNNPACK refuses at load (executorch 1.5.1); with any other number the operator stays as it is.
_NEARLY_ZERO = 1e-38


@operator("Reshape", "Flatten", "Squeeze", "Unsqueeze", numbers=(1,))
def reshape(call: Call) -> Function:
    shape = call.output()
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
    """A slice along one axis."""
    return torch.ops.aten.slice.Tensor(x, axis, start, stop, step)


@operator("Split", numbers=(1,))
def split(call: Call) -> Function:
    axis = call.axis(0)
    sizes = [call.output(i)[axis] for i in range(len(call.node.outputs))]
    ends = list(itertools.accumulate(sizes))
    return lambda x, *_: tuple(cut(x, axis, end - size, end) for size, end in zip(sizes, ends, strict=True))


@operator("Slice", numbers=(1, 2, 3, 4))
def slices(call: Call) -> Function:
    starts, ends = call.number(1), call.number(2)
    if starts is None or ends is None:
        raise call.refuse("its bounds are not constant")
    shape, axes, steps = call.shape(), call.number(3), call.number(4)
    along = range(len(starts)) if axes is None else [int(a) % len(shape) for a in axes]
    by = [1] * len(starts) if steps is None else steps.tolist()
    cuts = []
    for axis, start, end, step in zip(along, starts.tolist(), ends.tolist(), by, strict=True):
        taken = range(shape[axis])[start:end:step]
        if len(taken) != shape[axis] or step != 1:
            cuts.append((axis, taken))
    return partial(_slices, cuts=cuts)


def _slices(x: Tensor, *_: Tensor, cuts: list[tuple[int, range]]) -> Tensor:
    for axis, taken in cuts:
        ordered = taken if taken.step > 0 else taken[::-1]
        x = cut(x, axis, ordered.start, ordered[-1] + 1 if ordered else ordered.start, ordered.step)
        x = x if taken.step > 0 else torch.flip(x, [axis])
    return x if cuts else x.clone()


@operator("Gather")
def gather(call: Call) -> Function:
    axis, shape = call.axis(0), call.output()
    indices = call.number(1)
    if indices is None:
        return lambda x, i: torch.index_select(x, axis, _counted(i, call.shape()[axis])).reshape(shape)
    chosen = indices.reshape(-1) % call.shape()[axis]
    run = _run(chosen)
    if run is not None:
        return lambda x, *_: cut(x, axis, run[0], run[1]).reshape(shape)
    return lambda x, i: torch.index_select(x, axis, _counted(i, call.shape()[axis])).reshape(shape)


def _counted(indices: Tensor, size: int) -> Tensor:
    """Indices counted from the front, in one row."""
    flat = indices.reshape(-1)
    return torch.where(flat < 0, flat + size, flat)


def _run(chosen: Array) -> tuple[int, int] | None:
    """The bounds of indices that follow each other."""
    if chosen.size and np.array_equal(chosen, np.arange(chosen[0], chosen[0] + chosen.size)):
        return int(chosen[0]), int(chosen[0]) + chosen.size
    return None


@operator("GatherElements")
def gather_elements(call: Call) -> Function:
    axis, count = call.axis(0), _counting(call)
    return lambda x, i: torch.gather(x, axis, count(i))


def _counting(call: Call) -> Function:
    """How the indices of a node are counted from the front: torch takes no others here."""
    indices, size = call.number(1), call.shape()[call.axis(0)]
    if indices is not None and (indices >= 0).all():
        return lambda i: i
    return lambda i: torch.where(i < 0, i + size, i)


@operator("GatherND")
def gather_nd(call: Call) -> Function:
    batch = int(call.attribute("batch_dims", 0))
    if batch:
        raise call.refuse("batch dimensions have no form here")
    return lambda x, i: x[tuple(i.unbind(-1))]


@operator("ScatterElements")
def scatter_elements(call: Call) -> Function:
    axis, how, count = call.axis(0), str(call.attribute("reduction", "none")), _counting(call)
    if how == "none":
        return lambda x, i, update: torch.scatter(x, axis, count(i), update)
    if how == "add":
        return lambda x, i, update: torch.scatter_add(x, axis, count(i), update)
    raise call.refuse(f"reduction {how} has no form here")


@operator("ScatterND")
def scatter_nd(call: Call) -> Function:
    if str(call.attribute("reduction", "none")) != "none":
        raise call.refuse("a reduction has no form here")
    return lambda x, i, update: torch.index_put(x, tuple(i.unbind(-1)), update)


@operator("Pad", numbers=(1, 2, 3))
def pad(call: Call) -> Function:
    pads, value, axes = call.number(1), call.number(2), call.number(3)
    if pads is None:
        raise call.refuse("its pads are not constant")
    rank, half = len(call.shape()), len(pads) // 2
    along = range(rank) if axes is None else [int(a) % rank for a in axes]
    both = dict(zip(along, zip(pads[:half].tolist(), pads[half:].tolist(), strict=True), strict=True))
    amounts = [int(n) for axis in reversed(range(rank)) for n in both.get(axis, (0, 0))]
    while len(amounts) > 2 and amounts[-2:] == [0, 0]:
        amounts = amounts[:-2]
    mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    name = mode[str(call.attribute("mode", "constant"))]
    if name != "constant":
        amounts += [0] * (2 * (rank - 2) - len(amounts))  # torch asks for all axes behind the channels
        return lambda x, *_: torch.nn.functional.pad(x, amounts, name)
    number = 0.0 if value is None else float(value.reshape(()))
    if number == 0.0 and _reads_integers(call):
        number = _NEARLY_ZERO
    return lambda x, *_: torch.nn.functional.pad(x, amounts, name, number)


def _reads_integers(call: Call) -> bool:
    source = call.node.inputs[0]
    return source is not None and is_dequantize(source.producer())


@operator("DepthToSpace")
def depth_to_space(call: Call) -> Function:
    n, c, h, w = call.shape()
    size, shape = int(call.attribute("blocksize", 1)), call.output()
    if str(call.attribute("mode", "DCR")) == "DCR":
        cut_, perm = (n, size, size, c // size**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        cut_, perm = (n, c // size**2, size, size, h, w), (0, 1, 4, 2, 5, 3)
    return lambda x: x.reshape(cut_).permute(perm).reshape(shape)


@operator("SpaceToDepth")
def space_to_depth(call: Call) -> Function:
    n, c, h, w = call.shape()
    size, shape = int(call.attribute("blocksize", 1)), call.output()
    return lambda x: x.reshape(n, c, h // size, size, w // size, size).permute(0, 3, 5, 1, 2, 4).reshape(shape)
