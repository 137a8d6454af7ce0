"""Attention in windows one head at a time: Splits in front and a Concat behind, for the transposes around all heads.

By the vendor's estimate (soc 52, onnxruntime-qnn 2.7.0) a DINOv2-S block on [4,257,384] takes 1661 us with its heads
together and 1283 one at a time in w8a16, 2318 and 2020 in float16; Swin-T in w8a16 7283 and 5742. On a single window
both take the same time.
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
    """Write every attention of several heads in several windows as one per head; heads are cut from the last axis."""
    changed: list[Site] = []
    declined: list[Site] = []
    for attention in each_attention(model.graph):
        shape = shape_of(attention.query) or (1,)
        if shape[0] == 1 or (attention.heads or 1) == 1:
            continue
        where = origin_of(attention.mix.outputs[0]).name
        end = _merged(attention)
        reason = _why_not(attention)
        if reason or end is None:
            declined.append(Site(where, reason or "its heads are not put together again behind it"))
            continue
        _split(model.graph, attention, end)
        changed.append(Site(where, f"{attention.heads} heads, one at a time"))
    return PassRecord("split_heads", tuple(changed), tuple(declined))


def _why_not(attention: Attention) -> str:
    operands = ((attention.query, _HEADS_FIRST), (attention.key, _KEYS_LAST), (attention.value, _HEADS_FIRST))
    if any(_whole(value, perm) is None for value, perm in operands):
        return "its heads are not cut from the last axis"
    if any(sole_consumer(node.outputs[0]) is None for node in (attention.scores, *attention.path)):
        return "its scores are read elsewhere too"
    masks = {mask.node: mask for mask in attention.masks}
    if attention.scales or any(node not in masks for node in attention.path if node is not attention.softmax):
        return "something else than masks is done to its scores"
    shape = shape_of(attention.scores.outputs[0])
    for mask in attention.masks:
        if mask.fill is not None or constant_of(mask.value) is None or shape_of(mask.node.outputs[0]) != shape:
            return "its mask is not a constant that is added"
    return ""


def _whole(value: ir.Value, perm: tuple[int, ...]) -> ir.Value | None:
    """The tensor of all heads side by side that [batch, heads, ...] is made from."""
    turn = value.producer()
    if turn is None or not is_op(turn, "Transpose") or perm_of(turn) != perm or turn.inputs[0] is None:
        return None
    cut, shape = turn.inputs[0].producer(), shape_of(turn.inputs[0])
    source = cut.inputs[0] if cut is not None and is_op(cut, "Reshape") else None
    before = shape_of(source)
    return source if shape and before and len(shape) == 4 and before[-1] == shape[2] * shape[3] else None


def _merged(attention: Attention) -> ir.Node | None:
    """The Reshape that puts the heads side by side again."""
    turn = sole_consumer(attention.mix.outputs[0])
    if turn is None or not is_op(turn, "Transpose") or perm_of(turn) != _HEADS_FIRST:
        return None
    merge, before = sole_consumer(turn.outputs[0]), shape_of(turn.outputs[0])
    after = shape_of(merge.outputs[0]) if merge is not None and is_op(merge, "Reshape") else None
    return merge if before and after and after[-1] == before[2] * before[3] else None


def _split(graph: ir.Graph, attention: Attention, end: ir.Node) -> None:
    queries = _parts(end, attention.query, _HEADS_FIRST)
    keys = _parts(end, attention.key, _KEYS_LAST)
    values = _parts(end, attention.value, _HEADS_FIRST)
    mixed = []
    for head, (query, key, value) in enumerate(zip(queries, keys, values, strict=True)):
        key = insert_step(end, key, Step("Transpose", (0, 2, 1)), replaces=[])
        scores = _product(end, query, key, attention.scores)
        mixed.append(_product(end, _weights(graph, end, attention, scores, head), value, attention.mix))
    rows, output = shape_of(mixed[0]) or (), end.outputs[0]
    whole = edit.insert(
        end,
        "Concat",
        mixed,
        attributes={"axis": -1},
        source=output,
        replaces=[attention.mix],
        shape=(*rows[:-1], rows[-1] * len(mixed)),
    )
    edit.replace_value(output, insert_step(end, whole, Step("Reshape", shape_of(output) or ()), replaces=[end]))
    edit.remove_dead(graph, [end])


def _parts(before: ir.Node, value: ir.Value, perm: tuple[int, ...]) -> tuple[ir.Value, ...]:
    """The heads of one operand, each [batch, tokens, channels]."""
    whole, turn = _whole(value, perm), value.producer()
    if whole is None or turn is None:
        raise TypeError(f"the heads of {value.name!r} are not cut from the last axis")
    batch, tokens, heads, channels = shape_of(turn.inputs[0]) or ()
    if shape_of(whole) != (batch, tokens, heads * channels):
        whole = insert_step(before, whole, Step("Reshape", (batch, tokens, heads * channels)), replaces=[])
    return edit.insert_split(before, whole, [channels] * heads, replaces=[turn])


def _product(before: ir.Node, left: ir.Value, right: ir.Value, old: ir.Node) -> ir.Value:
    shape = (*(shape_of(left) or ())[:-1], (shape_of(right) or ())[-1])
    return edit.insert(before, "MatMul", [left, right], source=old.outputs[0], replaces=[old], shape=shape)


def _weights(graph: ir.Graph, before: ir.Node, attention: Attention, scores: ir.Value, head: int) -> ir.Value:
    """Masks and Softmax of one head."""
    masks = {mask.node: mask for mask in attention.masks}
    value, shape = scores, shape_of(scores)
    for node in attention.path:
        inputs, attributes = [value], {"axis": -1}
        if node in masks:
            mask = masks[node].value
            part = edit.add_initializer(graph, _of_head(mask, head), name=f"{mask.name}/{head}", source=mask)
            inputs, attributes = [value, part], {}
        source = node.outputs[0]
        value = edit.insert(
            before, node.op_type, inputs, attributes=attributes, source=source, replaces=[node], shape=shape
        )
    return value


def _of_head(mask: ir.Value, head: int) -> Array:
    """What is added to the scores of one head, for all batches and tokens."""
    array = constant_of(mask)
    if array is None:
        raise TypeError(f"the mask {mask.name!r} is no constant")
    padded = array.reshape((1,) * (4 - array.ndim) + array.shape)
    return padded[:, head % padded.shape[1]]
