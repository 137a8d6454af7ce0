"""Mappings of reductions, ArgMax, ArgMin, TopK and CumSum.

The only reduction of XNNPACK (executorch 1.5.1) is a mean over the last two axes of four with keepdims: all other means
are written as this one, sums over the last axes as a multiplication by a matrix of ones, and maxima as a pooling.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from dovetail.targets.xnnpack.operators.registry import MOST_AXES, Call, Function, Tensor, operator, torch

_SPATIAL_AXES = [2, 3]
REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare")


def mean_of_rows(x: Tensor) -> Tensor:
    """The mean of every row: [1, rows, 1, columns] -> [1, rows, 1, 1]."""
    return x.mean((2, 3), keepdim=True)


def max_of_rows(x: Tensor) -> Tensor:
    """The largest element of every row: [1, rows, 1, columns] -> [1, rows, 1, 1]."""
    return x if x.shape[3] == 1 else torch.nn.functional.max_pool2d(x, (1, x.shape[3]))


@operator(*REDUCTIONS, constants=(1,))
def reduction(call: Call) -> Function:
    """Reduce rows, with the reduced axes moved to the end; a sum is a linear layer with ones, exact for integers."""
    shape, dims, out = call.shape(), _dims(call), call.output_shape()
    if not dims or len(shape) > MOST_AXES or 0 in shape or not call.is_float():
        return native_reduction(call)
    op = call.node.op_type
    if op == "ReduceMean" and dims == _SPATIAL_AXES and len(out) == len(shape) == 4:
        return native_reduction(call)  # which has an int8 kernel
    order = [axis for axis in range(len(shape)) if axis not in dims] + dims
    count = math.prod(shape[axis] for axis in dims)
    permuted, ones = order != sorted(order), torch.ones(1, count)
    if permuted and op != "ReduceMean":
        return native_reduction(call)  # which is faster than a transpose in front
    before, after, of_rows = _BEFORE.get(op), _AFTER.get(op), _OF_ROWS.get(op)

    def reduce(x: Tensor, *_: Tensor) -> Tensor:
        flat = (x.permute(order) if permuted else x).reshape(-1, count)
        flat = flat if before is None else before(flat)
        result = torch.nn.functional.linear(flat, ones) if of_rows is None else of_rows(flat.reshape(1, -1, 1, count))
        return (result if after is None else after(result)).reshape(out)

    return reduce


# A reduction is done by a mean, a maximum or a sum of rows, with another function before and after it.
_OF_ROWS = {"ReduceMean": mean_of_rows, "ReduceMax": max_of_rows, "ReduceMin": max_of_rows}
_BEFORE: dict[str, Function] = {
    "ReduceL1": lambda x: torch.abs(x),
    "ReduceL2": lambda x: x * x,
    "ReduceMin": lambda x: -x,
    "ReduceSumSquare": lambda x: x * x,
}
_AFTER: dict[str, Function] = {"ReduceL2": lambda x: torch.sqrt(x), "ReduceMin": lambda x: -x}


def native_reduction(call: Call) -> Function:
    """The torch function that a model's author uses; delegated only for a mean over the last two axes of four."""
    dims, keep = _dims(call), bool(call.attribute("keepdims", 1))
    if not dims:
        if call.node.op_type not in _BEFORE or call.node.op_type == "ReduceMin":
            return lambda x, *_: x.clone()
        if call.shape():
            raise call.unsupported("reducing no axes is not supported")
        return lambda x, *_: x * x if call.node.op_type == "ReduceSumSquare" else torch.abs(x)
    return lambda x, *_: _typed(x, _NATIVE[call.node.op_type](x, dims, keep))


def _dims(call: Call) -> list[int]:
    """The reduced axes, sorted; none if the node has no axes and noop_with_empty_axes."""
    constant, rank = call.constant(1), len(call.shape())
    axes = call.attribute("axes", None) if constant is None else constant.tolist()
    if axes is None or not len(axes):
        return [] if call.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(int(axis) % rank for axis in axes)


def _typed(x: Tensor, result: Tensor) -> Tensor:
    """Convert a result to the dtype of its input: torch sums all integers in int64."""
    return result if result.dtype == x.dtype else result.to(x.dtype)


_NATIVE: dict[str, Function] = {
    "ReduceMean": lambda x, dims, keep: torch.mean(x, dims, keep),
    "ReduceSum": lambda x, dims, keep: torch.sum(x, dims, keep),
    "ReduceMax": lambda x, dims, keep: torch.amax(x, dims, keep),
    "ReduceMin": lambda x, dims, keep: torch.amin(x, dims, keep),
    "ReduceL1": lambda x, dims, keep: torch.sum(torch.abs(x), dims, keep),
    "ReduceSumSquare": lambda x, dims, keep: torch.sum(x * x, dims, keep),
    "ReduceL2": lambda x, dims, keep: torch.sqrt(torch.sum(x * x, dims, keep)),
}


@operator("ArgMax", "ArgMin")
def argument(call: Call) -> Function:
    axis, keep = call.axis(0), bool(call.attribute("keepdims", 1))
    name, last = call.node.op_type.lower(), call.shape()[axis] - 1
    if call.attribute("select_last_index", 0):
        return lambda x: last - getattr(torch, name)(torch.flip(x, [axis]), axis, keep)
    return lambda x: getattr(torch, name)(x, axis, keep)


@operator("TopK", constants=(1,))
def top_k(call: Call) -> Function:
    count = call.constant(1)
    if count is None:
        raise call.unsupported("its input K must be a constant")
    largest, ordered = bool(call.attribute("largest", 1)), bool(call.attribute("sorted", 1))
    return partial(_top_k, k=int(count.reshape(())), axis=call.axis(-1), largest=largest, ordered=ordered)


def _top_k(x: Tensor, _: Tensor, *, k: int, axis: int, largest: bool, ordered: bool) -> Tensor:
    return torch.topk(x, k, axis, largest, ordered)


@operator("CumSum", constants=(1,))
def cumulative(call: Call) -> Function:
    axis = call.constant(1)
    if axis is None or call.attribute("exclusive", 0) or call.attribute("reverse", 0):
        raise call.unsupported("only a sum along a constant axis without exclusive and reverse is supported")
    return lambda x, *_: _typed(x, torch.cumsum(x, int(np.ravel(axis)[0])))
