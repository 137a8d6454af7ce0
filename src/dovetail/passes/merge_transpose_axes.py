"""Transposes of rank 6 and more in fewer axes: the windows of Swin are [batch, rows, row, columns, column, channels].

Axes of one element go, and neighbours that stay neighbours are one axis: the windows above need rank 4. A permutation
that mixes more axes than that is done in several steps.
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
    """Write every Transpose of rank 6 and more as Reshapes and Transposes in between whose rank is 5 at most."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        source = node.inputs[0] if is_op(node, "Transpose") else None
        if source is None or source.shape is None or source.shape.rank() <= MAX_RANK:
            continue
        output = node.outputs[0]
        shape, where = shape_of(source), origin_of(output).name
        if shape is None or 0 in shape:
            declined.append(Site(where, "the shape is not known, or nothing is in it"))
            continue
        steps = transpose_steps(shape, perm_of(node))
        value = source
        for step in steps:
            value = insert_step(node, value, step, replaces=[node])
        edit.replace_value(output, value)
        edit.remove_dead(model.graph, [node])
        ranks = [len(step.numbers) for step in steps if step.op_type == "Transpose"]
        changed.append(Site(where, f"rank {len(shape)} made {', '.join(map(str, ranks)) or 'a Reshape'}"))
    return PassRecord("merge_transpose_axes", tuple(changed), tuple(declined))


def transpose_steps(shape: tuple[int, ...], perm: tuple[int, ...]) -> list[Step]:
    """The steps that permute a tensor with no Transpose of a rank above 5."""
    real = [axis for axis, size in enumerate(shape) if size != 1]
    sizes = [shape[axis] for axis in real]
    steps: list[Step] = []
    for order in _parts(tuple(real.index(axis) for axis in perm if axis in real)):
        runs = _runs(order)
        in_memory = sorted(runs)
        steps.append(Step("Reshape", tuple(math.prod(sizes[axis] for axis in run) for run in in_memory)))
        steps.append(Step("Transpose", tuple(in_memory.index(run) for run in runs)))
        sizes = [sizes[axis] for axis in order]
    return [*steps, Step("Reshape", tuple(shape[axis] for axis in perm))]


def _parts(order: _Order) -> list[_Order]:
    """An order as orders to be done one after another, each of no more runs than a Transpose may have axes."""
    parts: list[_Order] = []
    while len(_runs(order)) > MAX_RANK:
        rests = {swap: _rest(order, swap) for swap in _swaps(len(order))}
        best = min(rests, key=lambda swap: len(_runs(rests[swap])))  # some swap always joins two runs
        parts.append(best)
        order = rests[best]
    return [*parts, order] if len(_runs(order)) > 1 else parts


def _runs(order: _Order) -> list[_Order]:
    """The longest stretches of an order that count up by one: the axes that stay together."""
    cuts = [i for i in range(1, len(order)) if order[i] != order[i - 1] + 1]
    return [order[a:b] for a, b in itertools.pairwise([0, *cuts, len(order)])]


def _swaps(rank: int) -> Iterator[_Order]:
    """Every order in which two neighbouring blocks of axes change places."""
    axes = tuple(range(rank))
    for a, b, c in itertools.combinations(range(rank + 1), 3):
        yield (*axes[:a], *axes[b:c], *axes[a:b], *axes[c:])


def _rest(order: _Order, done: _Order) -> _Order:
    """What is left of an order when another one is done first."""
    return tuple(done.index(axis) for axis in order)
