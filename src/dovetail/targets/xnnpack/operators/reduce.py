"""Means and sums, extremes, and what goes along one axis.

XNNPACK (executorch 1.5.1) has means over the last two axes of four, which it keeps, and no other reduction: all other
means are written as these, and sums over the last axes as products.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from dovetail.targets.xnnpack.operators.registry import MOST_AXES, Call, Function, Tensor, operator, torch

_PICTURE = [2, 3]


def mean_of_rows(x: Tensor) -> Tensor:
    """The means of [1, rows, 1, numbers], as [1, rows, 1, 1]."""
    return x.mean((2, 3), keepdim=True)


@operator("ReduceMean", "ReduceSum", "ReduceL2", numbers=(1,))
def reduction(call: Call) -> Function:
    """Over rows: what is put together goes to the back. A sum is a product with ones, which is exact for counts."""
    shape, dims, out = call.shape(), _dims(call), call.output()
    if not dims or len(shape) > MOST_AXES or 0 in shape or not call.is_float():
        return native_reduction(call)
    op = call.node.op_type
    if op == "ReduceMean" and dims == _PICTURE and len(out) == len(shape) == 4:
        return native_reduction(call)  # which has an int8 form
    order = [axis for axis in range(len(shape)) if axis not in dims] + dims
    count = math.prod(shape[axis] for axis in dims)
    turned, ones = order != sorted(order), torch.ones(1, count)
    if turned and op != "ReduceMean":
        return native_reduction(call)  # which is faster than turning everything first

    def reduce(x: Tensor, *_: Tensor) -> Tensor:
        flat = (x.permute(order) if turned else x).reshape(-1, count)
        if op == "ReduceMean":
            return mean_of_rows(flat.reshape(1, -1, 1, count)).reshape(out)
        total = torch.nn.functional.linear(flat * flat if op == "ReduceL2" else flat, ones)
        return (torch.sqrt(total) if op == "ReduceL2" else total).reshape(out)

    return reduce


@operator("ReduceMax", "ReduceMin", numbers=(1,))
def extreme(call: Call) -> Function:
    return native_reduction(call)


def native_reduction(call: Call) -> Function:
    """As a model's author writes it; runs outside XNNPACK, but for a mean of a picture."""
    dims, keep = _dims(call), bool(call.attribute("keepdims", 1))
    if not dims:
        if call.node.op_type != "ReduceL2":
            return lambda x, *_: x.clone()
        if call.shape():
            raise call.refuse("a length over no axes has no form here")
        return lambda x, *_: torch.abs(x)
    return lambda x, *_: _typed(x, _REDUCTIONS[call.node.op_type](x, dims, keep))


def _dims(call: Call) -> list[int]:
    """The axes that are put together, in order; none where a node with no axes is to do nothing."""
    given, rank = call.number(1), len(call.shape())
    axes = call.attribute("axes", None) if given is None else given.tolist()
    if axes is None or not len(axes):
        return [] if call.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(int(axis) % rank for axis in axes)


def _typed(x: Tensor, result: Tensor) -> Tensor:
    """A result in the type of what it was made of: torch sums all integers in 64 bits."""
    return result if result.dtype == x.dtype else result.to(x.dtype)


_REDUCTIONS: dict[str, Function] = {
    "ReduceMean": lambda x, dims, keep: torch.mean(x, dims, keep),
    "ReduceSum": lambda x, dims, keep: torch.sum(x, dims, keep),
    "ReduceMax": lambda x, dims, keep: torch.amax(x, dims, keep),
    "ReduceMin": lambda x, dims, keep: torch.amin(x, dims, keep),
    "ReduceL2": lambda x, dims, keep: torch.sqrt(torch.sum(x * x, dims, keep)),
}


@operator("ArgMax", "ArgMin")
def argument(call: Call) -> Function:
    axis, keep = call.axis(0), bool(call.attribute("keepdims", 1))
    name, last = call.node.op_type.lower(), call.shape()[axis] - 1
    if call.attribute("select_last_index", 0):
        return lambda x: last - getattr(torch, name)(torch.flip(x, [axis]), axis, keep)
    return lambda x: getattr(torch, name)(x, axis, keep)


@operator("TopK", numbers=(1,))
def top_k(call: Call) -> Function:
    count = call.number(1)
    if count is None:
        raise call.refuse("its number of rows is not a constant")
    largest, ordered = bool(call.attribute("largest", 1)), bool(call.attribute("sorted", 1))
    return partial(_top_k, k=int(count.reshape(())), axis=call.axis(-1), largest=largest, ordered=ordered)


def _top_k(x: Tensor, _: Tensor, *, k: int, axis: int, largest: bool, ordered: bool) -> Tensor:
    return torch.topk(x, k, axis, largest, ordered)


@operator("CumSum", numbers=(1,))
def cumulative(call: Call) -> Function:
    axis = call.number(1)
    if axis is None or call.attribute("exclusive", 0) or call.attribute("reverse", 0):
        raise call.refuse("only the plain sum along a constant axis has a form here")
    return lambda x, *_: _typed(x, torch.cumsum(x, int(np.ravel(axis)[0])))
