"""A linear layer whose output is only cut into parts, as one linear layer per part.

TensorRT-RTX puts layers that read the same tensor together by itself, but takes a layer that is cut apart to pieces
first: a weight with one scale per channel is then read back into float16, and the product is not in 8 bit.
"""

from __future__ import annotations

import itertools

import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of, sole_consumer
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def split_linear(model: ir.Model) -> PassRecord:
    """``Split(x W + b)`` on the last axis becomes ``x W_i + b_i`` for every part, if nothing else reads the whole."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "MatMul") or (weight := constant_of(node.inputs[1])) is None or weight.ndim != 2:
            continue
        found = _behind(node)
        if found is None:
            continue
        add, split = found
        where, sizes = origin_of(node.outputs[0]).name, _sizes(split)
        reason = _why_not(node, add, split, sizes, weight)
        if reason:
            declined.append(Site(where, reason))
            continue
        changed.append(Site(where, f"cut into {len(sizes)} linear layers"))
        _cut(node, add, split, sizes, weight)
    return PassRecord("split_linear", tuple(changed), tuple(declined))


def _behind(node: ir.Node) -> tuple[ir.Node | None, ir.Node] | None:
    """The bias and the Split that read a product; None where no Split does."""
    reader = next((user for user, _ in node.outputs[0].uses()), None)
    if is_op(reader, "Add") and reader is not None:
        split = next((user for user, _ in reader.outputs[0].uses() if is_op(user, "Split")), None)
        return None if split is None else (reader, split)
    return (None, reader) if reader is not None and is_op(reader, "Split") else None


def _sizes(split: ir.Node) -> list[int]:
    shapes = [shape_of(output) for output in split.outputs]
    return [shape[-1] for shape in shapes if shape]


def _why_not(node: ir.Node, add: ir.Node | None, split: ir.Node, sizes: list[int], weight: Array) -> str:
    rank = len(shape_of(split.inputs[0]) or ())
    if attribute(split, "axis", 0) not in (-1, rank - 1) or not rank:
        return "it is not cut along its last axis"
    if sum(sizes) != weight.shape[1] or len(sizes) != len(split.outputs):
        return "the sizes of its parts are not known"
    if any(sole_consumer(one.outputs[0]) is None for one in (node, add) if one is not None):
        return "something else reads it whole"
    if add is not None and not _is_bias(add, weight.shape[1]):
        return "what is added is not one number per output"
    return ""


def _is_bias(add: ir.Node, outputs: int) -> bool:
    return [shape_of(v) for v in add.inputs if constant_of(v) is not None] == [(outputs,)]


def _cut(node: ir.Node, add: ir.Node | None, split: ir.Node, sizes: list[int], weight: Array) -> None:
    graph = edit.graph_of(node)
    ends = list(itertools.accumulate(sizes))
    replaced = [one for one in (node, add, split) if one is not None]
    for part, (size, end) in zip(list(split.outputs), zip(sizes, ends, strict=True), strict=True):
        value = _part(graph, split, node, add, slice(end - size, end), part, replaced)
        edit.replace_value(part, value)
    edit.remove_dead(graph, [split])


def _part(
    graph: ir.Graph,
    before: ir.Node,
    node: ir.Node,
    add: ir.Node | None,
    columns: slice,
    part: ir.Value,
    replaced: list[ir.Node],
) -> ir.Value:
    source, weight = node.inputs
    array = constant_of(weight)
    if weight is None or array is None:
        raise ValueError(f"{node.name!r} has no constant weight")
    cut = edit.add_initializer(graph, array[:, columns], name=f"{weight.name}/{columns.start}", source=weight)
    shape = shape_of(part)
    value = edit.insert(before, "MatMul", [source, cut], source=part, replaces=replaced, shape=shape)
    if add is None:
        return value
    bias = next(v for v in add.inputs if v is not None and constant_of(v) is not None)
    numbers = constant_of(bias)
    if numbers is None:
        raise ValueError(f"{add.name!r} adds no constant")
    some = edit.add_initializer(graph, numbers[columns], name=f"{bias.name}/{columns.start}", source=bias)
    return edit.insert(before, "Add", [value, some], source=part, replaces=replaced, shape=shape)
