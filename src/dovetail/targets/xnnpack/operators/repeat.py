"""Repeating elements. XNNPACK (executorch 1.5.1) has no operator for it, but its products broadcast: by ones."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.targets.xnnpack.operators.registry import MOST_AXES, Call, Function, operator, torch


def repeating(shape: Sequence[int], whole: Sequence[int], each: Sequence[int] | None = None) -> Function | None:
    """A function of a float tensor that repeats every axis so many times as a whole, and every element along it.

    None where that needs more axes than XNNPACK takes.
    """
    axes: list[tuple[int, int]] = []  # of the tensor, and of the ones that it is multiplied with
    for size, times, inner in zip(shape, whole, each or [1] * len(shape), strict=True):
        axes += [(1, times)] if times > 1 else []
        axes += [(size, 1)] if size > 1 or times == 1 else []
        axes += [(1, inner)] if inner > 1 else []
    if len(axes) > MOST_AXES:
        return None
    apart, ones = [size for size, _ in axes], torch.ones([times for _, times in axes])
    joined = [s * w * e for s, w, e in zip(shape, whole, each or [1] * len(shape), strict=True)]
    return lambda x: (x.reshape(apart) * ones).reshape(joined)


@operator("Expand", numbers=(1,))
def expand(call: Call) -> Function:
    after = call.output()
    before = (1,) * (len(after) - len(call.shape())) + call.shape()
    times = [new if old == 1 else 1 for old, new in zip(before, after, strict=True)]
    found = repeating(before, times) if call.is_float() and 0 not in after else None
    return native_expand(call) if found is None else lambda x, *_: found(x)


def native_expand(call: Call) -> Function:
    """As a model's author writes it; runs outside XNNPACK."""
    shape = call.output()
    return lambda x, *_: x.expand(shape)


@operator("Tile", numbers=(1,))
def tile(call: Call) -> Function:
    found = repeating(call.shape(), _repeats(call)) if call.is_float() and 0 not in call.output() else None
    return native_tile(call) if found is None else lambda x, *_: found(x)


def native_tile(call: Call) -> Function:
    """As a model's author writes it; runs outside XNNPACK."""
    repeats = _repeats(call)
    return lambda x, *_: x.repeat(repeats)


def _repeats(call: Call) -> tuple[int, ...]:
    repeats = call.number(1)
    if repeats is None:
        raise call.refuse("its repeats are not constant")
    return tuple(repeats.tolist())
