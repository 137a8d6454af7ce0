"""Remove the ``Softmax -> IsNaN -> Where`` guard of an attention block in which no row of scores can be all -inf."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.attention import Attention, Mask, Scale, each_attention
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

# The largest magnitude of masks. A score added to the largest float32 is rounded away; in float16 it can overflow.
_FLOAT32_REACH = float(np.finfo(np.float32).max)
_FLOAT16_REACH = float(np.finfo(np.float16).max) / 2


def remove_nan_guard(model: ir.Model) -> PassRecord:
    """Connect the consumers of the guard to the Softmax, where the guard provably has no effect.

    Softmax gives NaN for a row that is all -inf or contains +inf. Finite scores become infinite only through masks: by
    infinite ones, or by finite ones that overflow together or in a later scale. On HTP the guard costs more than the
    attention itself, and it keeps TensorRT from fusing the attention block.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for attention in each_attention(model.graph):
        guard = attention.guard
        if guard is None or (probabilities := guard.inputs[2]) is None:
            continue
        where = origin_of(attention.softmax.outputs[0]).name
        reason = _why_needed(attention)
        if reason is not None:
            declined.append(Site(where, reason))
            continue
        edit.replace_value(guard.outputs[0], probabilities)
        edit.remove_dead(edit.graph_of(guard), [guard])
        changed.append(Site(where, "NaN guard removed: no row of scores can be all -inf"))
    return PassRecord("remove_nan_guard", tuple(changed), tuple(declined))


def _why_needed(attention: Attention) -> str | None:
    """Why the guard may be needed, or None if it has no effect."""
    infinite = [mask for mask in attention.masks if not np.isfinite(_mask_values(mask)).all()]
    if len(infinite) > 1:
        return "several masks can be -inf: together they may mask a whole row"
    if infinite and (reason := _why_row_masked(infinite[0])) is not None:
        return reason
    return _why_overflow(attention, infinite)


def _mask_values(mask: Mask) -> Array:
    """All values that a mask can add to or put into the scores; NaN where they depend on the inputs."""
    unknown = np.array([np.nan])
    if mask.fill is not None:
        fill = edit.scalar_of(mask.fill)
        return unknown if fill is None else np.array([fill])
    array = edit.constant_of(mask.value)
    if array is not None:
        return array
    where = mask.value.producer()
    if where is None or not edit.is_op(where, "Where"):
        return unknown
    branches = [edit.constant_of(branch) for branch in where.inputs[1:]]
    return np.concatenate([unknown if branch is None else branch.reshape(-1) for branch in branches])


def _why_row_masked(mask: Mask) -> str | None:
    array = edit.constant_of(mask.value)
    name = origin_of(mask.value).name
    values = _mask_values(mask)
    if array is None:
        return f"the mask {name!r} depends on the inputs: a whole row may be masked"
    if np.isnan(values).any() or np.isposinf(values).any():
        return f"the mask {name!r} holds NaN or +inf"
    kept = array == mask.keep if mask.fill is not None else np.isfinite(array)
    rows_kept = kept.any(axis=-1) if kept.ndim else kept
    return None if rows_kept.all() else f"the mask {name!r} masks a whole row"


def _why_overflow(attention: Attention, infinite: list[Mask]) -> str | None:
    """Why finite masks may overflow: their sum is tracked, scaled as the scores are, up to the Softmax."""
    masks = {mask.node: mask for mask in attention.masks}
    scales = {scale.node: scale for scale in attention.scales}
    reach, is_infinite = 0.0, False
    for node in attention.path[: attention.path.index(attention.softmax)]:
        if (scale := scales.get(node)) is not None:
            factors = _factors(scale)
            if is_infinite and not (factors > 0).all():
                return f"{node.op_type} {node.name!r} turns the -inf of a mask into NaN or +inf"
            reach *= float(np.abs(factors).max()) if reach else 1.0
        elif (mask := masks.get(node)) is not None:
            values = _mask_values(mask)
            largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
            reach = max(reach, largest) if mask.fill is not None else reach + largest
            is_infinite = is_infinite or mask in infinite
        half = node.outputs[0].dtype is ir.DataType.FLOAT16
        if not reach <= (_FLOAT16_REACH if half else _FLOAT32_REACH):
            return f"finite masks reach {reach:.3g} at {node.op_type} {node.name!r} and overflow: a row may become -inf"
    return None


def _factors(scale: Scale) -> Array:
    factor = next(value for value in scale.node.inputs if value is not scale.data)
    array = edit.constant_of(factor)
    if array is None:
        return np.array([np.nan])
    with np.errstate(divide="ignore"):
        return 1 / array.astype(np.float64) if edit.is_op(scale.node, "Div") else array.astype(np.float64)
