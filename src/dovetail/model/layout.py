"""Reshapes and transposes (Squeeze, Unsqueeze and Flatten count as reshapes) as short lists of steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dovetail.model import edit

LAYOUT_OPS = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")


@dataclass(frozen=True, slots=True)
class Step:
    """A Reshape to a shape, or a Transpose by a permutation."""

    op_type: str
    shape_or_perm: tuple[int, ...]


def step_of(node: ir.Node) -> Step:
    """The step that a reshape or transpose node performs."""
    if node.op_type == "Transpose":
        return Step("Transpose", perm_of(node))
    return Step("Reshape", edit.shape_of(node.outputs[0]) or ())


def insert_step(before: ir.Node, value: ir.Value, step: Step, *, replaces: Iterable[ir.Node]) -> ir.Value:
    """Insert the node for a step and return its output."""
    if step.op_type == "Transpose":
        old = edit.shape_of(value) or ()
        shape = [old[axis] for axis in step.shape_or_perm]
        perm = {"perm": step.shape_or_perm}
        return edit.insert(before, "Transpose", [value], attributes=perm, source=value, replaces=replaces, shape=shape)
    target = np.array(step.shape_or_perm, dtype=np.int64)
    name = f"{value.name}/shape"
    constant = edit.add_initializer(edit.graph_of(before), target, name=name, source=value)
    return edit.insert(before, "Reshape", [value, constant], source=value, replaces=replaces, shape=step.shape_or_perm)


def perm_of(node: ir.Node) -> tuple[int, ...]:
    """The permutation of a Transpose."""
    rank = len(edit.shape_of(node.outputs[0]) or ())
    return tuple(edit.attribute(node, "perm", tuple(reversed(range(rank)))))


def shortest_steps(source: ir.Value, chain: Sequence[ir.Node]) -> list[Step]:
    """The fewest Reshapes and Transposes that compute the same as a chain of such nodes.

    Every axis is tracked as a list of (size, stride) factors of the contiguous source. If each axis of the result is
    one factor, a Reshape and a Transpose are enough; if an axis merges factors that are not contiguous, a Reshape
    has to follow. A chain that is already this short is returned as it is.
    """
    start = edit.shape_of(source) or ()
    steps: list[Step] = []
    axes = _axes(start)
    for node in chain:
        if node.op_type == "Transpose":
            axes = [axes[axis] for axis in perm_of(node)]
            continue
        shape = edit.shape_of(node.outputs[0]) or ()
        reshaped = _reshaped(axes, shape)
        if reshaped is None:  # a new axis would end inside a factor: no steps are merged across this Reshape
            steps += _steps(start, axes)
            start = _shape(axes)
            reshaped = _reshaped(_axes(start), shape)
        if reshaped is None:  # not possible for a contiguous tensor either, for example 6 x 4 to 8 x 3
            steps.append(Step("Reshape", shape))
            start, reshaped = shape, _axes(shape)
        axes = reshaped
    steps += _steps(start, axes)
    return steps if len(steps) < len(chain) else [step_of(node) for node in chain]


_Factor = tuple[int, int]  # size and stride, in elements of the contiguous source
_Axis = list[_Factor]  # outermost factor first; empty for an axis of size 1


def _axes(shape: tuple[int, ...]) -> list[_Axis]:
    return [[(size, math.prod(shape[axis + 1 :]))] if size != 1 else [] for axis, size in enumerate(shape)]


def _shape(axes: Iterable[_Axis]) -> tuple[int, ...]:
    return tuple(math.prod(size for size, _ in axis) for axis in axes)


def _reshaped(axes: Sequence[_Axis], shape: tuple[int, ...]) -> list[_Axis] | None:
    """The axes after a Reshape, or None if one would end inside a factor that is not divisible there."""
    factors = [factor for axis in axes for factor in axis]
    result: list[_Axis] = []
    for remaining in shape:
        axis: _Axis = []
        while remaining > 1:
            size, stride = factors.pop(0)
            taken = min(size, remaining)
            if size % taken or remaining % taken:
                return None
            if taken < size:
                factors.insert(0, (size // taken, stride))
            _append(axis, (taken, stride * (size // taken)))
            remaining //= taken
        result.append(axis)
    return result


def _append(axis: _Axis, factor: _Factor) -> None:
    """Append an inner factor, merged with the one outside it if the two are contiguous."""
    size, stride = factor
    if axis and axis[-1][1] == size * stride:
        axis[-1] = (axis[-1][0] * size, stride)
    else:
        axis.append(factor)


def _steps(start: tuple[int, ...], axes: Sequence[_Axis]) -> list[Step]:
    merges = any(len(axis) > 1 for axis in axes)
    strides = {stride: size for axis in axes for size, stride in axis}
    in_memory = sorted(strides, reverse=True)
    sizes = [strides[stride] for stride in in_memory]
    if merges and sizes == [size for size in start if size != 1]:
        ones = [axis for axis, size in enumerate(start) if size == 1]
    else:
        ones = [] if merges else [axis for axis, factors in enumerate(axes) if not factors]
    # An axis of size 1 may be anywhere: it stays where it is in the source, or where it is in the result.
    before = _with_ones(in_memory, ones)
    after = _with_ones([stride for axis in axes for _, stride in axis], ones)
    shape = tuple(1 if key < 0 else strides[key] for key in before)
    perm = tuple(before.index(key) for key in after)
    steps = [Step("Reshape", shape)] if shape != start else []
    if perm != tuple(range(len(perm))):
        steps.append(Step("Transpose", perm))
    return [*steps, Step("Reshape", _shape(axes))] if merges else steps


def _with_ones(strides: Iterable[int], ones: Iterable[int]) -> list[int]:
    """The strides as keys of axes, with the axes of size 1, keyed -1, -2, ..., inserted at their positions."""
    keys = list(strides)
    for axis in ones:
        keys.insert(axis, -1 - axis)
    return keys
