"""Rewrite Transposes of rank 6 and more with fewer axes: Swin has [batch, rows, row, columns, column, channels].

Axes of size 1 are removed, and adjacent axes that stay adjacent are merged: its windows need rank 4. A
permutation that still needs more than 5 axes is done in several steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import is_op, shape_of
from dovetail.model.layout import Step, insert_step, perm_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

MAX_RANK = 5
_Order = tuple[int, ...]


def merge_transpose_axes(model: ir.Model) -> PassRecord:
    """Rewrite every Transpose of rank 6 and more as Reshapes and Transposes of rank 5 at most."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        source = node.inputs[0] if is_op(node, "Transpose") else None
        if source is None or source.shape is None or source.shape.rank() <= MAX_RANK:
            continue
        output = node.outputs[0]
        shape, where = shape_of(source), origin_of(output).name
        if shape is None or 0 in shape:
            declined.append(Site(where, "the shape is unknown, or the tensor is empty"))
            continue
        steps = transpose_steps(shape, perm_of(node))
        value = source
        for step in steps:
            value = insert_step(node, value, step, replaces=[node])
        edit.replace_value(output, value)
        edit.remove_dead(model.graph, [node])
        ranks = [len(step.shape_or_perm) for step in steps if step.op_type == "Transpose"]
        changed.append(Site(where, f"rank {len(shape)} reduced to {', '.join(map(str, ranks)) or 'a Reshape'}"))
    return PassRecord("merge_transpose_axes", tuple(changed), tuple(declined))


def transpose_steps(shape: tuple[int, ...], perm: tuple[int, ...]) -> list[Step]:
    """The steps that permute a tensor without a Transpose of a rank above 5."""
    kept = [axis for axis, size in enumerate(shape) if size != 1]
    sizes = [shape[axis] for axis in kept]
    steps: list[Step] = []
    for order in _split_order(tuple(kept.index(axis) for axis in perm if axis in kept)):
        runs = _runs(order)
        in_memory = sorted(runs)
        steps.append(Step("Reshape", tuple(math.prod(sizes[axis] for axis in run) for run in in_memory)))
        steps.append(Step("Transpose", tuple(in_memory.index(run) for run in runs)))
        sizes = [sizes[axis] for axis in order]
    return [*steps, Step("Reshape", tuple(shape[axis] for axis in perm))]


def _split_order(order: _Order) -> list[_Order]:
    """An order as a sequence of orders, each with no more runs than a Transpose may have axes."""
    orders: list[_Order] = []
    while len(_runs(order)) > MAX_RANK:
        rests = {swap: _rest(order, swap) for swap in _swaps(len(order))}
        best = min(rests, key=lambda swap: len(_runs(rests[swap])))  # some swap always joins two runs
        orders.append(best)
        order = rests[best]
    return [*orders, order] if len(_runs(order)) > 1 else orders


def _runs(order: _Order) -> list[_Order]:
    """The longest runs of consecutive axes in an order: the axes that stay adjacent."""
    cuts = [i for i in range(1, len(order)) if order[i] != order[i - 1] + 1]
    return [order[a:b] for a, b in itertools.pairwise([0, *cuts, len(order)])]


def _swaps(rank: int) -> Iterator[_Order]:
    """Every order that swaps two adjacent blocks of axes."""
    axes = tuple(range(rank))
    for a, b, c in itertools.combinations(range(rank + 1), 3):
        yield (*axes[:a], *axes[b:c], *axes[a:b], *axes[c:])


def _rest(order: _Order, done: _Order) -> _Order:
    """The order that remains after another one is applied first."""
    return tuple(done.index(axis) for axis in order)
