"""Scale every attention block once: by one scalar Mul on Q, directly before the MatMul with K."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.attention import VALUE_PRESERVING_OPS, Attention, ScalePlace, each_attention
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def attention_scale(model: ir.Model) -> PassRecord:
    """Merge the scales on Q, K and the scores into one Mul on Q; a scale of 1 is removed.

    On Q, not on the scores, because the scores are larger wherever there are more tokens than channels per head; not on
    K, so that its Transposes can merge. From Q the Mul can later be folded into the weights of the query projection.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for attention in each_attention(model.graph):
        if _is_canonical(attention):
            continue
        where = origin_of(attention.scores.outputs[0]).name
        reason = _why_not(attention)
        if reason is not None:
            declined.append(Site(where, reason))
            continue
        places = ", ".join(dict.fromkeys(scale.place for scale in attention.scales))
        changed.append(Site(where, f"scale {attention.scale:.7g} on {places} moved to the query"))
        _rewrite(attention)
    return PassRecord("attention_scale", tuple(changed), tuple(declined))


def _is_canonical(attention: Attention) -> bool:
    if not attention.scales:
        return True
    scale = attention.scales[0]
    return (
        len(attention.scales) == 1
        and scale.factor != 1.0
        and scale.node.op_type == "Mul"
        and scale.node.outputs[0] is attention.scores.inputs[0]
        and scale.node.inputs[0] is scale.data
        and edit.shape_of(scale.node.inputs[1]) == ()
    )


def _why_not(attention: Attention) -> str | None:
    if attention.scale is None:
        return "a scale is not one constant scalar"
    for scale in attention.scales:
        if attention.query.dtype is None or scale.data.dtype != attention.query.dtype:
            return f"the scale is applied in {scale.data.dtype}, but the query is {attention.query.dtype}"
    moved = _moved_path(attention)
    for node in (attention.scores, *moved[:-1]) if moved else ():
        if edit.sole_consumer(node.outputs[0]) is None:
            return f"the unscaled scores {origin_of(node.outputs[0]).name!r} are used elsewhere too"
    for mask in attention.masks:
        if mask.node in moved and mask.fill is None and edit.constant_of(mask.value) is None:
            return f"the scale is applied after the mask {origin_of(mask.value).name!r}, which depends on the inputs"
    return None


def _moved_path(attention: Attention) -> tuple[ir.Node, ...]:
    """The nodes after the scores MatMul, up to the last scale on the scores."""
    scaling = [scale.node for scale in attention.scales if scale.place is ScalePlace.SCORES]
    return attention.path[: attention.path.index(scaling[-1]) + 1] if scaling else ()


def _rewrite(attention: Attention) -> None:
    scores = attention.scores
    old = [value.producer() for value in scores.inputs if value is not None]
    query = _scaled(_unscaled(scores.inputs[0], ScalePlace.QUERY, attention), attention)
    key = _unscaled(scores.inputs[1], ScalePlace.KEY, attention)
    moved = _moved_path(attention)
    if moved:
        edit.replace_value(moved[-1].outputs[0], _rebuilt(attention, moved, query, key))
        old.append(moved[-1])
    else:
        scores.replace_input_with(0, query)
        scores.replace_input_with(1, key)
    edit.remove_dead(edit.graph_of(scores), [node for node in old if node is not None])


def _scaled(query: ir.Value, attention: Attention) -> ir.Value:
    if attention.scale == 1.0:
        return query
    if query.dtype is None:
        raise TypeError(f"the query {query.name!r} has no type")
    first = attention.scales[0]
    old = next(value for value in first.node.inputs if value is not None and value is not first.data)
    factor = np.array(attention.scale, dtype=query.dtype.numpy())
    constant = edit.add_initializer(edit.graph_of(first.node), factor, name=f"{query.name}/scale", source=old)
    replaced = [scale.node for scale in attention.scales]
    return edit.insert(
        attention.scores, "Mul", [query, constant], source=query, replaces=replaced, shape=edit.shape_of(query)
    )


def _unscaled(value: ir.Value | None, place: ScalePlace, attention: Attention) -> ir.Value:
    """The operand without its scales; nodes after a scale are copied, so that other consumers keep theirs."""
    if value is None:
        raise ValueError(f"an input of node {attention.scores.name!r} is missing")
    node = value.producer()
    for scale in attention.scales:
        if scale.node is node and scale.place is place:
            return _unscaled(scale.data, place, attention)
    if node is None or not edit.is_op(node, *VALUE_PRESERVING_OPS):
        return value
    bare = _unscaled(node.inputs[0], place, attention)
    return value if bare is node.inputs[0] else edit.insert_copy(attention.scores, node, [bare, *node.inputs[1:]])


def _rebuilt(attention: Attention, moved: tuple[ir.Node, ...], query: ir.Value, key: ir.Value) -> ir.Value:
    """Copies of the scores and the nodes up to the last scale, without scales; masks are scaled instead."""
    scores, last = attention.scores, moved[-1]
    factors = {scale.node: scale.factor for scale in attention.scales if scale.factor is not None}
    masks = {mask.node: mask for mask in attention.masks}
    above, current = scores.outputs[0], edit.insert_copy(last, scores, [query, key])
    for position, node in enumerate(moved):
        if node not in factors:
            inputs = [current if value is above else value for value in node.inputs]
            if node in masks:
                later = float(np.prod([factors.get(later_node, 1.0) for later_node in moved[position:]]))
                old = masks[node].value if masks[node].fill is None else masks[node].fill
                inputs = [_times(value, later, last) if value is old else value for value in inputs]
            current = edit.insert_copy(last, node, inputs)
        above = node.outputs[0]
    return current


def _times(value: ir.Value | None, factor: float, before: ir.Node) -> ir.Value | None:
    array: Array | None = edit.constant_of(value)
    if value is None or array is None or factor == 1.0:
        return value
    with np.errstate(over="ignore"):
        scaled = (array * factor).astype(array.dtype)
    return edit.add_initializer(edit.graph_of(before), scaled, name=f"{value.name}/scaled", source=value)
