"""Remove attention masks that mask nothing: added constants of zeros, and conditions that are always true."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.attention import Mask, each_attention
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def remove_zero_masks(model: ir.Model) -> PassRecord:
    """Remove every mask that changes no score."""
    changed: list[Site] = []
    declined: list[Site] = []
    for attention in each_attention(model.graph):
        for mask in reversed(attention.masks):  # last to first, so that the tensors of earlier masks stay valid
            if not _masks_nothing(mask):
                continue
            where = origin_of(mask.node.outputs[0]).name
            if edit.shape_of(mask.data) is None or edit.shape_of(mask.data) != edit.shape_of(mask.node.outputs[0]):
                declined.append(Site(where, "the mask is zero, but broadcasts the scores to another shape"))
                continue
            edit.replace_value(mask.node.outputs[0], mask.data)
            edit.remove_dead(edit.graph_of(mask.node), [mask.node])
            changed.append(Site(where, f"mask {origin_of(mask.value).name!r} removed: it masks nothing"))
    return PassRecord("remove_zero_masks", tuple(changed), tuple(declined))


def _masks_nothing(mask: Mask) -> bool:
    array = edit.constant_of(mask.value)
    if array is None:
        return False
    return bool((array == mask.keep).all() if mask.fill is not None else (array == 0).all())
