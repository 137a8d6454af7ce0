"""Set reduced sentinels and masks to what the calibrated range of the tensors beside them requires, and not more.

A mask of -10 000 masks every score, but 16 bits have a step of 0.15 then. If scores range from -8 to 8, -136 gives the
same zeros with a step of 0.002.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import constant_of, is_op
from dovetail.model.origin import origin_of
from dovetail.model.place import named
from dovetail.model.sentinels import SATURATED, Effect, SentinelEdge, clip_bound, reach_of
from dovetail.pass_record import PassRecord, Site

_EFFECT, _MAGNITUDE = "dovetail.sentinel", "dovetail.sentinel_magnitude"
# exp(-104) is 7e-46, which float32 rounds to zero.
_ZERO_BELOW = 104.0
# sigmoid(12) is 1 - 6e-6: a box of an image of 10 000 pixels moves by less than a tenth of one.
_LEAST_SATURATED = 12.0
# Scores, and what is added to a sentinel, may range this many times as far in other data as in calibrated data.
_MARGIN = 2.0

Ranges = Mapping[str, tuple[float, float]]


def record_bounded(constant: ir.Value, effect: Effect, magnitude: float) -> None:
    """Record on a constant that its elements of this magnitude are reduced sentinels."""
    constant.metadata_props[_EFFECT] = effect
    constant.metadata_props[_MAGNITUDE] = repr(magnitude)


def tensors_beside_sentinels(model: ir.Model) -> tuple[str, ...]:
    """The tensors whose ranges decide how large the reduced sentinels must be."""
    values = [value for edge, effect, _ in _bounded(model.graph) for value in _beside(edge, effect)]
    return tuple(dict.fromkeys(str(value.name) for value in values if constant_of(value) is None))


def fit_sentinels(model: ir.Model, ranges: Ranges) -> PassRecord:
    """Set every reduced sentinel to the magnitude that these ranges require; no record of it is left on constants."""
    changed: list[Site] = []
    for edge, effect, current in list(_bounded(model.graph)):
        spans = [_span(value, ranges) for value in _beside(edge, effect)]
        if any(span is None for span in spans) or (effect is Effect.MASKS and not _reaches_softmax_alone(edge)):
            continue
        hits = np.abs(edge.array) == current
        magnitude = _magnitude(edge, effect, hits, [span for span in spans if span is not None])
        if magnitude == current:
            continue
        array = np.where(hits, np.sign(edge.array) * magnitude, edge.array)
        name = f"{edge.value.name}/fitted"
        constant = edit.add_initializer(model.graph, array.astype(edge.array.dtype), name=name, source=edge.value)
        edge.node.replace_input_with(edge.index, constant)
        site = f"read by {named(edge.node)}"
        what = f"magnitude {current:g} set to {magnitude:g} for the calibrated range beside it, {site}"
        changed.append(Site(origin_of(edge.value).name, what))
    forget_bounded(model)
    return PassRecord("fit_sentinels", tuple(changed))


def forget_bounded(model: ir.Model) -> None:
    """Remove the record of reduced sentinels, which only this pass reads."""
    for value in model.graph.initializers.values():
        value.metadata_props.pop(_EFFECT, None)
        value.metadata_props.pop(_MAGNITUDE, None)


def _bounded(graph: ir.Graph) -> Iterator[tuple[SentinelEdge, Effect, float]]:
    """Every edge with reduced sentinels, their effect and their magnitude."""
    for node in graph:
        for index, value in enumerate(node.inputs):
            effect = None if value is None else value.metadata_props.get(_EFFECT)
            array = constant_of(value)
            if value is None or effect is None or array is None or node.op_type not in ("Add", "Where", "Concat"):
                continue
            yield SentinelEdge(node, index, value, array), Effect(effect), float(value.metadata_props[_MAGNITUDE])


def _reaches_softmax_alone(edge: SentinelEdge) -> bool:
    """Whether a mask reaches its Softmax unscaled and without another one, so that its own magnitude decides."""
    reach = reach_of(edge.node.outputs[0])
    alone = reach.output is None and not reach.summands and not reach.merged
    return alone and all(is_op(node, "Softmax") for node, _ in reach.readers)


def _beside(edge: SentinelEdge, effect: Effect) -> list[ir.Value]:
    """What the sentinels of an edge compete with: the masked tensor, or all that is added to them."""
    if effect is not Effect.SATURATES:
        return [] if edge.data is None else [edge.data]
    summands = reach_of(edge.node.outputs[0]).summands
    return [edge.data, *summands] if edge.node.op_type == "Add" and edge.data is not None else summands


def _span(value: ir.Value, ranges: Ranges) -> tuple[float, float] | None:
    array = constant_of(value)
    return ranges.get(str(value.name)) if array is None else (float(array.min()), float(array.max()))


def _magnitude(edge: SentinelEdge, effect: Effect, hits: Array, spans: list[tuple[float, float]]) -> float:
    """The magnitude with which the sentinels have the same effect within these ranges."""
    if effect is Effect.SATURATES:
        positive, negative = (bool((sign * edge.array[hits] > 0).any()) for sign in (1, -1))
        against = sum(max(0.0, -low * positive, high * negative) for low, high in spans)
        return max(SATURATED, float(math.ceil(max(_LEAST_SATURATED, clip_bound(edge)) + _MARGIN * against)))
    ((low, high),) = spans
    if edge.node.op_type == "Add":
        added = edge.array[~hits]
        apart = high - low + float(added.max(initial=0.0)) - float(added.min(initial=0.0))
        return float(math.ceil(_ZERO_BELOW + _MARGIN * apart))
    # Selected by a Where: beyond all scores, for a Softmax so far below that its exponential is zero.
    beyond = _ZERO_BELOW if effect is Effect.MASKS else 1.0
    return float(math.ceil(max(abs(low), abs(high)) + _MARGIN * (high - low) + beyond))
