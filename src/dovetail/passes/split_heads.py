"""Split windowed attention into one attention per head: Splits before it and a Concat after it replace Transposes.

By the vendor's estimate (soc 52, onnxruntime-qnn 2.7.0) a DINOv2-S block on [4,257,384] takes 1661 us with all heads
together and 1283 us with one head at a time in w8a16, 2318 and 2020 in float16; Swin-T in w8a16 7283 and 5742. On a
single window both take the same time.
"""

from __future__ import annotations

import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.attention import Attention, each_attention
from dovetail.model.edit import constant_of, is_op, shape_of, sole_consumer
from dovetail.model.layout import Step, insert_step, perm_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

_HEADS_FIRST, _KEYS_LAST = (0, 2, 1, 3), (0, 2, 3, 1)  # of [batch, tokens, heads, channels]


def split_heads(model: ir.Model) -> PassRecord:
    """Rewrite attention blocks with several heads and windows as one block per head, split from the last axis."""
    changed: list[Site] = []
    declined: list[Site] = []
    for attention in each_attention(model.graph):
        shape = shape_of(attention.query) or (1,)
        if shape[0] == 1 or (attention.heads or 1) == 1:
            continue
        where = origin_of(attention.mix.outputs[0]).name
        end = _merge_reshape(attention)
        reason = _why_not(attention)
        if reason or end is None:
            declined.append(Site(where, reason or "its heads are not merged by a Transpose and a Reshape after it"))
            continue
        _split(model.graph, attention, end)
        changed.append(Site(where, f"split into {attention.heads} attentions of one head"))
    return PassRecord("split_heads", tuple(changed), tuple(declined))


def _why_not(attention: Attention) -> str:
    operands = ((attention.query, _HEADS_FIRST), (attention.key, _KEYS_LAST), (attention.value, _HEADS_FIRST))
    if any(_all_heads(value, perm) is None for value, perm in operands):
        return "its heads are not split from the last axis"
    if any(sole_consumer(node.outputs[0]) is None for node in (attention.scores, *attention.path)):
        return "its scores are used elsewhere too"
    masks = {mask.node: mask for mask in attention.masks}
    if attention.scales or any(node not in masks for node in attention.path if node is not attention.softmax):
        return "its scores are changed by something other than masks"
    shape = shape_of(attention.scores.outputs[0])
    for mask in attention.masks:
        if mask.fill is not None or constant_of(mask.value) is None or shape_of(mask.node.outputs[0]) != shape:
            return "its mask is not an added constant"
    return ""


def _all_heads(value: ir.Value, perm: tuple[int, ...]) -> ir.Value | None:
    """The tensor with all heads in its last axis that the Reshape and Transpose to [batch, heads, ...] read."""
    transpose = value.producer()
    if (
        transpose is None
        or not is_op(transpose, "Transpose")
        or perm_of(transpose) != perm
        or transpose.inputs[0] is None
    ):
        return None
    reshape, shape = transpose.inputs[0].producer(), shape_of(transpose.inputs[0])
    source = reshape.inputs[0] if reshape is not None and is_op(reshape, "Reshape") else None
    before = shape_of(source)
    return source if shape and before and len(shape) == 4 and before[-1] == shape[2] * shape[3] else None


def _merge_reshape(attention: Attention) -> ir.Node | None:
    """The Reshape after the attention block that merges the heads."""
    transpose = sole_consumer(attention.mix.outputs[0])
    if transpose is None or not is_op(transpose, "Transpose") or perm_of(transpose) != _HEADS_FIRST:
        return None
    merge, before = sole_consumer(transpose.outputs[0]), shape_of(transpose.outputs[0])
    after = shape_of(merge.outputs[0]) if merge is not None and is_op(merge, "Reshape") else None
    return merge if before and after and after[-1] == before[2] * before[3] else None


def _split(graph: ir.Graph, attention: Attention, end: ir.Node) -> None:
    queries = _heads_of(end, attention.query, _HEADS_FIRST)
    keys = _heads_of(end, attention.key, _KEYS_LAST)
    values = _heads_of(end, attention.value, _HEADS_FIRST)
    mixed = []
    for head, (query, key, value) in enumerate(zip(queries, keys, values, strict=True)):
        key = insert_step(end, key, Step("Transpose", (0, 2, 1)), replaces=[])
        scores = _matmul(end, query, key, attention.scores)
        mixed.append(_matmul(end, _probabilities(graph, end, attention, scores, head), value, attention.mix))
    rows, output = shape_of(mixed[0]) or (), end.outputs[0]
    merged = edit.insert(
        end,
        "Concat",
        mixed,
        attributes={"axis": -1},
        source=output,
        replaces=[attention.mix],
        shape=(*rows[:-1], rows[-1] * len(mixed)),
    )
    edit.replace_value(output, insert_step(end, merged, Step("Reshape", shape_of(output) or ()), replaces=[end]))
    edit.remove_dead(graph, [end])


def _heads_of(before: ir.Node, value: ir.Value, perm: tuple[int, ...]) -> tuple[ir.Value, ...]:
    """The heads of one operand, each [batch, tokens, channels]."""
    source, transpose = _all_heads(value, perm), value.producer()
    if source is None or transpose is None:
        raise TypeError(f"the heads of {value.name!r} are not split from the last axis")
    batch, tokens, heads, channels = shape_of(transpose.inputs[0]) or ()
    if shape_of(source) != (batch, tokens, heads * channels):
        source = insert_step(before, source, Step("Reshape", (batch, tokens, heads * channels)), replaces=[])
    return edit.insert_split(before, source, [channels] * heads, replaces=[transpose])


def _matmul(before: ir.Node, left: ir.Value, right: ir.Value, old: ir.Node) -> ir.Value:
    shape = (*(shape_of(left) or ())[:-1], (shape_of(right) or ())[-1])
    return edit.insert(before, "MatMul", [left, right], source=old.outputs[0], replaces=[old], shape=shape)


def _probabilities(graph: ir.Graph, before: ir.Node, attention: Attention, scores: ir.Value, head: int) -> ir.Value:
    """The probabilities of one head: its masks and its Softmax."""
    masks = {mask.node: mask for mask in attention.masks}
    value, shape = scores, shape_of(scores)
    for node in attention.path:
        inputs, attributes = [value], {"axis": -1}
        if node in masks:
            mask = masks[node].value
            head_mask = edit.add_initializer(graph, _mask_of_head(mask, head), name=f"{mask.name}/{head}", source=mask)
            inputs, attributes = [value, head_mask], {}
        source = node.outputs[0]
        value = edit.insert(
            before, node.op_type, inputs, attributes=attributes, source=source, replaces=[node], shape=shape
        )
    return value


def _mask_of_head(mask: ir.Value, head: int) -> Array:
    """The mask of one head, for all windows and tokens."""
    array = constant_of(mask)
    if array is None:
        raise TypeError(f"the mask {mask.name!r} is not constant")
    padded = array.reshape((1,) * (4 - array.ndim) + array.shape)
    return padded[:, head % padded.shape[1]]
