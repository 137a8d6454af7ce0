"""Mappings that repeat elements: XNNPACK (executorch 1.5.1) has no such operator, but broadcasts a multiply by ones."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.targets.xnnpack.operators.registry import MOST_AXES, Call, Function, operator, torch


def repeating(shape: Sequence[int], whole: Sequence[int], each: Sequence[int] | None = None) -> Function | None:
    """A function that repeats every axis of a float tensor ``whole`` times, and every element along it ``each`` times.

    None if that requires more axes than XNNPACK supports.
    """
    axes: list[tuple[int, int]] = []  # sizes of the tensor, and of the ones that it is multiplied by
    for size, times, inner in zip(shape, whole, each or [1] * len(shape), strict=True):
        axes += [(1, times)] if times > 1 else []
        axes += [(size, 1)] if size > 1 or times == 1 else []
        axes += [(1, inner)] if inner > 1 else []
    if len(axes) > MOST_AXES:
        return None
    split, ones = [size for size, _ in axes], torch.ones([times for _, times in axes])
    joined = [s * w * e for s, w, e in zip(shape, whole, each or [1] * len(shape), strict=True)]
    return lambda x: (x.reshape(split) * ones).reshape(joined)


@operator("Expand", constants=(1,))
def expand(call: Call) -> Function:
    after = call.output_shape()
    before = (1,) * (len(after) - len(call.shape())) + call.shape()
    times = [new if old == 1 else 1 for old, new in zip(before, after, strict=True)]
    repeat = repeating(before, times) if call.is_float() and 0 not in after else None
    return native_expand(call) if repeat is None else lambda x, *_: repeat(x)


def native_expand(call: Call) -> Function:
    """The torch function that a model's author uses; it is not delegated."""
    shape = call.output_shape()
    return lambda x, *_: x.expand(shape)


@operator("Tile", constants=(1,))
def tile(call: Call) -> Function:
    repeat = repeating(call.shape(), _repeats(call)) if call.is_float() and 0 not in call.output_shape() else None
    return native_tile(call) if repeat is None else lambda x, *_: repeat(x)


def native_tile(call: Call) -> Function:
    """The torch function that a model's author uses; it is not delegated."""
    repeats = _repeats(call)
    return lambda x, *_: x.repeat(repeats)


def _repeats(call: Call) -> tuple[int, ...]:
    repeats = call.constant(1)
    if repeats is None:
        raise call.unsupported("its repeats must be constants")
    return tuple(repeats.tolist())
