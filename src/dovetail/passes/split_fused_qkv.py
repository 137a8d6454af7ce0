"""Split a fused QKV projection in one canonical way: by one Split of the projection's last axis."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.attention import VALUE_PRESERVING_OPS, find_attention
from dovetail.model.layout import Step, insert_step, perm_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


@dataclass(frozen=True, slots=True)
class _Part:
    """A value that is element ``index`` of another tensor along ``axis``, without that axis: Q, K or V."""

    value: ir.Value
    axis: int
    index: int


def split_fused_qkv(model: ir.Model) -> PassRecord:
    """Rewrite `Reshape [..,3,H,D] -> Transpose -> Q, K, V` as `Split`, then `Reshape [..,H,D] -> Transpose` for each.

    Exporters select Q, K and V by Split and Squeeze, by Slice and Squeeze, by Gather, or slice the projection itself.
    After this pass a fused projection looks like three separate ones after a Split: no tensor has rank 5, the
    Transpose of K can merge with its head split, and splitting the weights later removes nothing but the Split.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for tensor in _split_tensors(model.graph):
        parts = list(_parts_of(tensor))
        if len(parts) < 2:
            _split_sliced(tensor, changed)
            continue
        transpose = _transpose_above(tensor, parts[0].axis)
        reshaped = tensor if transpose is None else transpose.inputs[0]
        reshape = None if reshaped is None else reshaped.producer()
        if reshape is not None and edit.is_op(reshape, "Reshape"):
            _split_reshaped(reshape, transpose, parts, changed, declined)
    return PassRecord("split_fused_qkv", tuple(changed), tuple(declined))


def _transpose_above(tensor: ir.Value, axis: int) -> ir.Node | None:
    """The Transpose that writes a tensor, also through a Reshape after ``axis`` that merges heads into the batch."""
    node = tensor.producer()
    if node is not None and edit.is_op(node, "Reshape") and node.inputs[0] is not None:
        before, after = edit.shape_of(node.inputs[0]), edit.shape_of(tensor)
        kept = before is not None and after is not None and before[: axis + 1] == after[: axis + 1]
        node = node.inputs[0].producer() if kept else None
    return node if node is not None and edit.is_op(node, "Transpose") else None


def _split_tensors(graph: ir.Graph) -> list[ir.Value]:
    """The tensors from which Q, K or V is selected."""
    tensors: list[ir.Value] = []
    for attention in find_attention(graph):
        for operand in (attention.query, attention.key, attention.value):
            node = operand.producer()
            while node is not None and edit.is_op(node, *VALUE_PRESERVING_OPS):
                node = None if (above := node.inputs[0]) is None else above.producer()
            if node is not None and edit.is_op(node, "Gather", "Slice", "Split") and node.inputs[0] is not None:
                tensors.append(node.inputs[0])
    return list(dict.fromkeys(tensors))


def _split_reshaped(
    reshape: ir.Node, transpose: ir.Node | None, parts: list[_Part], changed: list[Site], declined: list[Site]
) -> None:
    source = reshape.inputs[0]
    before, after = edit.shape_of(source), edit.shape_of(reshape.outputs[0])
    if source is None or before is None or after is None:
        return
    perm = tuple(range(len(after))) if transpose is None else perm_of(transpose)
    where = origin_of(source).name
    axes = {perm[part.axis] for part in parts}
    if len(axes) > 1 or math.prod(after[: min(axes)]) != math.prod(before[:-1]):
        declined.append(Site(where, "Q, K and V are interleaved: they are not ranges of the projection's last axis"))
        return
    parts_axis = axes.pop()
    part_shape = (*before[:-1], before[-1] // after[parts_axis])
    _replace_parts(reshape, source, parts, after[parts_axis], _steps(part_shape, after, perm, parts_axis))
    changed.append(Site(where, f"{len(parts)} parts of the fused projection now come from one Split"))


def _steps(part_shape: tuple[int, ...], after: tuple[int, ...], perm: tuple[int, ...], parts_axis: int) -> list[Step]:
    """The Reshape to ``after`` and the Transpose for one part, without the axis of the parts."""
    shape = (*after[:parts_axis], *after[parts_axis + 1 :])
    rest = tuple(old - (old > parts_axis) for old in perm if old != parts_axis)
    steps = [Step("Reshape", shape)] if shape != part_shape else []
    return steps + ([Step("Transpose", rest)] if rest != tuple(range(len(rest))) else [])


def _replace_parts(reshape: ir.Node, source: ir.Value, parts: list[_Part], count: int, steps: list[Step]) -> None:
    old = [node for part in parts if (node := part.value.producer()) is not None]
    size = (edit.shape_of(source) or (0,))[-1] // count
    split = edit.insert_split(reshape, source, [size] * count, replaces=[reshape, *old])
    for part in parts:
        value = split[part.index]
        for step in steps:
            value = insert_step(reshape, value, step, replaces=[reshape, *old])
        shape = edit.shape_of(part.value)
        if shape is not None and shape != edit.shape_of(value):  # the heads were merged into the batch
            value = insert_step(reshape, value, Step("Reshape", shape), replaces=[reshape, *old])
        edit.replace_value(part.value, value)
    edit.remove_dead(edit.graph_of(reshape), old)


def _parts_of(value: ir.Value) -> Iterator[_Part]:
    """Every single element along an axis, without that axis, that is selected from a tensor."""
    shape = edit.shape_of(value) or ()
    for node, position in list(value.uses()):
        index = edit.constant_of(node.inputs[1]) if edit.is_op(node, "Gather") else None
        if index is not None and position == 0 and index.ndim == 0:
            axis = edit.attribute(node, "axis", 0) % len(shape)
            yield _Part(node.outputs[0], axis, int(index) % shape[axis])
            continue
        for piece, axis, start in _pieces(node):
            for consumer, _ in list(piece.uses()):
                squeezed = (*shape[:axis], *shape[axis + 1 :])
                squeezes = edit.is_op(consumer, "Squeeze", "Reshape") and edit.shape_of(consumer.outputs[0]) == squeezed
                if squeezes and edit.shape_of(piece) == (*shape[:axis], 1, *shape[axis + 1 :]):
                    yield _Part(consumer.outputs[0], axis, start)


def _pieces(node: ir.Node) -> Iterator[tuple[ir.Value, int, int]]:
    """The outputs of a Slice or Split, each with its axis and its start along that axis."""
    shape = edit.shape_of(node.inputs[0]) if node.inputs else None
    if shape is None:
        return
    if edit.is_op(node, "Split"):
        axis, start = edit.attribute(node, "axis", 0) % len(shape), 0
        for output in node.outputs:
            yield output, axis, start
            start += (edit.shape_of(output) or shape)[axis]
    elif edit.is_op(node, "Slice"):
        starts, ends, axes, steps = (edit.constant_of(value) for value in _slice_inputs(node))
        if starts is None or ends is None or axes is None or starts.size != 1:
            return
        if steps is None or int(steps.reshape(-1)[0]) == 1:
            axis, start = int(axes.reshape(-1)[0]) % len(shape), int(starts.reshape(-1)[0])
            yield node.outputs[0], axis, start + shape[axis] if start < 0 else start


def _slice_inputs(node: ir.Node) -> list[ir.Value | None]:
    return [*node.inputs[1:], None, None, None, None][:4]


def _split_sliced(value: ir.Value, changed: list[Site]) -> None:
    """Replace the Slices that divide a tensor's last axis into equal parts by one Split."""
    shape = edit.shape_of(value)
    slices: dict[int, list[ir.Node]] = defaultdict(list)
    for node, _ in list(value.uses()):
        if shape is not None and edit.is_op(node, "Slice"):
            for _, axis, start in _pieces(node):
                if axis == len(shape) - 1:
                    slices[start].append(node)
    if shape is None or len(slices) < 2 or shape[-1] % len(slices):
        return
    size = shape[-1] // len(slices)
    slice_nodes = [node for nodes in slices.values() for node in nodes]
    shapes = {edit.shape_of(node.outputs[0]) for node in slice_nodes}
    if sorted(slices) != list(range(0, shape[-1], size)) or shapes != {(*shape[:-1], size)}:
        return
    first = min(slice_nodes, key=list(edit.graph_of(slice_nodes[0])).index)
    parts = edit.insert_split(first, value, [size] * len(slices), replaces=slice_nodes)
    for start, nodes in slices.items():
        for node in nodes:
            edit.replace_value(node.outputs[0], parts[start // size])
    edit.remove_dead(edit.graph_of(first), slice_nodes)
    changed.append(Site(origin_of(value).name, f"{len(slices)} Slices replaced by one Split"))
