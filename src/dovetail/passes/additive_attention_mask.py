"""Write masks as constants that are added to the scores, with masking values no lower than a Softmax needs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.attention import MASKED, Mask, each_attention
from dovetail.model.origin import origin_of
from dovetail.model.sentinels import Effect
from dovetail.pass_record import PassRecord, Site
from dovetail.passes.fit_sentinels import record_bounded


def additive_attention_mask(model: ir.Model) -> PassRecord:
    """Replace `Where(condition, scores, fill)` by `scores + constant`, and masking values such as -inf by -10 000.

    With a sentinel such as -3.4e38 in its range, a quantized tensor has no resolution left for the scores.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for attention in each_attention(model.graph):
        for mask in reversed(attention.masks):  # last to first, so that the tensors of earlier masks stay valid
            where = origin_of(mask.node.outputs[0]).name
            if mask.fill is None:
                if _clamp(mask):
                    changed.append(
                        Site(where, f"masking values of {origin_of(mask.value).name!r} raised to {MASKED:g}")
                    )
                continue
            reason = _why_not(mask)
            if reason is not None:
                declined.append(Site(where, reason))
                continue
            _add(mask)
            changed.append(Site(where, f"condition {origin_of(mask.value).name!r} replaced by an added mask"))
    return PassRecord("additive_attention_mask", tuple(changed), tuple(declined))


def _clamp(mask: Mask) -> bool:
    """Raise the masking values of an added constant on this edge, unless some row has only such values."""
    array = edit.constant_of(mask.value)
    if array is None or array.ndim == 0 or not (array < MASKED).any() or not (array > MASKED).any(axis=-1).all():
        return False
    raised = np.maximum(array, np.asarray(MASKED, array.dtype))
    name, graph = f"{mask.value.name}/raised", edit.graph_of(mask.node)
    constant = edit.add_initializer(graph, raised, name=name, source=mask.value)
    record_bounded(constant, Effect.MASKS, -MASKED)
    for index, value in enumerate(mask.node.inputs):
        if value is mask.value:
            mask.node.replace_input_with(index, constant)
    return True


def _why_not(mask: Mask) -> str | None:
    condition, fill = edit.constant_of(mask.value), edit.scalar_of(mask.fill)
    name = origin_of(mask.value).name
    if condition is None:
        return f"the condition {name!r} depends on the inputs"
    if fill is None or fill > MASKED:
        return f"the fill value {fill} is too large to mask when it is added"
    if not _kept(condition, mask).any(axis=-1).all():
        return f"the condition {name!r} masks a whole row"
    if edit.shape_of(mask.data) is None or edit.shape_of(mask.data) != edit.shape_of(mask.node.outputs[0]):
        return f"the condition {name!r} broadcasts the scores to another shape"
    return None


def _kept(condition: Array, mask: Mask) -> Array:
    return np.atleast_1d(condition == mask.keep)


def _add(mask: Mask) -> None:
    node, graph = mask.node, edit.graph_of(mask.node)
    condition, fill = edit.constant_of(mask.value), edit.constant_of(mask.fill)
    if condition is None or fill is None:
        raise ValueError(f"the mask {node.name!r} is not constant")
    array = np.where(_kept(condition, mask), np.zeros_like(fill), np.maximum(fill, MASKED)).astype(fill.dtype)
    constant = edit.add_initializer(graph, array, name=f"{mask.value.name}/added", source=mask.value)
    record_bounded(constant, Effect.MASKS, -MASKED)
    shape = edit.shape_of(mask.data)
    added = edit.insert(node, "Add", [mask.data, constant], source=mask.data, replaces=[node], shape=shape)
    edit.replace_value(node.outputs[0], added)
    edit.remove_dead(graph, [node])
