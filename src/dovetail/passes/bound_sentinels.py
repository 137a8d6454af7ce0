"""Reduce sentinels in constants (infinity, the largest float, -1e9) whose magnitude their consumers cannot distinguish.

Detectors mark anchors outside the image with the largest float, which is added to box offsets before a Sigmoid, and
attention masks scores with -1e9. It would set the quantization range of all values. The reduced value is provisional
where it depends on the range of other tensors: ``fit_sentinels`` sets it from calibration data.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.attention import MASKED
from dovetail.model.origin import origin_of
from dovetail.model.place import named
from dovetail.model.sentinels import SATURATED, Effect, SentinelEdge, clip_bound, effect_of, sentinel_edges
from dovetail.pass_record import PassRecord, Site
from dovetail.passes.computed_masks import select_masked
from dovetail.passes.fit_sentinels import record_bounded

_REDUCED = {Effect.SATURATES: SATURATED, Effect.ORDERS: -MASKED, Effect.MASKS: -MASKED}


def bound_sentinels(model: ir.Model) -> PassRecord:
    """Set sentinels to a moderate magnitude where the only consumers saturate, order, or are a Softmax.

    Masks that are computed from a boolean tensor and added to the scores of a Softmax become a Where first.
    """
    selected = select_masked(model)
    changed, declined = list(selected.changed), list(selected.declined)
    for edge in list(sentinel_edges(model.graph)):
        effect = effect_of(edge)
        site = f"read by {named(edge.node)}"
        if not isinstance(effect, Effect):
            declined.append(Site(origin_of(edge.value).name, f"{site}: {effect}"))
            continue
        count, magnitude = int(edge.hits.sum()), _bound(model.graph, edge, effect)
        what = f"{count} sentinels of {_largest(edge):.3g} reduced to magnitude {magnitude:g}, {site}"
        changed.append(Site(origin_of(edge.value).name, what))
    return PassRecord("bound_sentinels", tuple(changed), tuple(declined))


def _bound(graph: ir.Graph, edge: SentinelEdge, effect: Effect) -> float:
    """Give the node a constant of its own with reduced sentinels, and return their magnitude."""
    least = _REDUCED[effect]
    if effect is Effect.SATURATES:  # what is added must not bring it between the bounds of a Clip
        least = max(least, clip_bound(edge) + SATURATED / 2)
    magnitude = edge.array.dtype.type(least)
    while (np.abs(edge.array) == magnitude).any():  # the sentinels stay different from all data
        magnitude = np.nextafter(magnitude, edge.array.dtype.type(np.inf))
    bounded = np.where(edge.hits, np.sign(edge.array) * magnitude, edge.array).astype(edge.array.dtype)
    constant = edit.add_initializer(graph, bounded, name=f"{edge.value.name}/bounded", source=edge.value)
    record_bounded(constant, effect, float(magnitude))
    edge.node.replace_input_with(edge.index, constant)
    return float(magnitude)


def _largest(edge: SentinelEdge) -> float:
    sentinels: Array = edge.array[edge.hits]
    return float(sentinels[np.abs(sentinels).argmax()])
