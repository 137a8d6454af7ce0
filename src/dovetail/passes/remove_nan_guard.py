"""Remove the ``Softmax -> IsNaN -> Where`` guard of an attention in which no row can be wholly masked."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.attention import Attention, Mask, each_attention
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def remove_nan_guard(model: ir.Model) -> PassRecord:
    """Let the readers of a guarded Softmax read the Softmax, where the guard is provably dead.

    Softmax gives NaN for a row that is -inf throughout, which only a mask can do. The guard costs a HTP more than
    the attention itself and keeps TensorRT from fusing it.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for attention in each_attention(model.graph):
        guard = attention.guard
        if guard is None or (probabilities := guard.inputs[2]) is None:
            continue
        where = origin_of(attention.softmax.outputs[0]).name
        reason = _why_alive(attention)
        if reason is not None:
            declined.append(Site(where, reason))
            continue
        edit.replace_value(guard.outputs[0], probabilities)
        edit.remove_dead(edit.graph_of(guard), [guard])
        changed.append(Site(where, "NaN guard removed: no row can be wholly masked"))
    return PassRecord("remove_nan_guard", tuple(changed), tuple(declined))


def _why_alive(attention: Attention) -> str | None:
    """Why the guard may be needed, or None when it cannot be."""
    infinite = [mask for mask in attention.masks if not _always_finite(mask)]
    if len(infinite) > 1:
        return "several masks can be -inf: together they may mask a whole row"
    return _why_row_masked(infinite[0]) if infinite else None


def _always_finite(mask: Mask) -> bool:
    """Whether the mask can put no -inf into the scores, whatever the inputs are."""
    if mask.fill is not None:
        fill = edit.scalar_of(mask.fill)
        return fill is not None and bool(np.isfinite(fill))
    array = edit.constant_of(mask.value)
    if array is not None:
        return bool(np.isfinite(array).all())
    chosen = mask.value.producer()
    if chosen is None or not edit.is_op(chosen, "Where"):
        return False
    branches = [edit.constant_of(branch) for branch in chosen.inputs[1:]]
    return all(branch is not None and bool(np.isfinite(branch).all()) for branch in branches)


def _why_row_masked(mask: Mask) -> str | None:
    array = edit.constant_of(mask.value)
    name = origin_of(mask.value).name
    if array is None:
        return f"the mask {name!r} depends on the inputs: a row may be wholly masked"
    if mask.fill is not None:
        kept = array == mask.keep
    elif np.isnan(array).any() or np.isposinf(array).any():
        return f"the mask {name!r} holds NaN or +inf"
    else:
        kept = np.isfinite(array)
    rows_alive = kept.any(axis=-1) if kept.ndim else kept
    return None if rows_alive.all() else f"the mask {name!r} masks a whole row"
