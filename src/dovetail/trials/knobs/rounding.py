"""Weights that are rounded so that the output of their layer has the least error (``--rounding``).

The input of a layer, whose second moments that needs, is what it reads in the simulation with weights rounded to
nearest. One pass over the samples collects the moments of as many layers as fit into ``MOMENTS_BYTES``, and of at least
one. A weight with several consumers is rounded for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import Array, DType, QParams
from dovetail.finding import WHOLE_MODEL
from dovetail.model.edit import constant_of, shape_of
from dovetail.model.weight_layout import weight_layout
from dovetail.numerics.affine import dequantize, quantize
from dovetail.numerics.layouts import Layout, add_moments, moments_shape
from dovetail.numerics.methods import AUTO_ROUNDING, RoundingMethod
from dovetail.numerics.rounding import conditional_moments, output_error, search_scales, second_order
from dovetail.passes.as_float16 import why_not_float16
from dovetail.plan.constraints import Unit, build_problem
from dovetail.plan.rounded_weights import RoundedWeight, allowed_scales
from dovetail.storage import Plan
from dovetail.trials.decision import Alternative, Decision
from dovetail.trials.knob import Knob, Outcome
from dovetail.trials.variant import Variant
from dovetail.trials.workbench import Workbench
from dovetail.verify.verdicts import bounded_db

NAME = "rounding"
# Samples from which moments are collected, and samples on which the result is compared with rounding to nearest.
MOMENT_SAMPLES, COMPARED_SAMPLES = 128, 64
MOMENTS_BYTES = 1 << 29
CRITERION = (
    "the requested rounding, if the worst output gains SQNR in simulation: mean per sample above its standard error"
)


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """A layer with a quantized weight.

    ``source``: the tensor that it reads, by its name in the simulation. ``half``: its scales are emitted as float16.
    """

    unit: Unit
    edge: Edge
    params: QParams
    weight: Array
    layout: Layout
    source: str
    source_bytes: int
    half: bool

    @property
    def key(self) -> tuple[str, Hashable]:
        """Layers with equal keys have the same moments."""
        return self.source, self.layout.unfolding


@dataclass(frozen=True, slots=True)
class LayerGain:
    """The SQNR of a layer's output, of the error of its weight alone: rounded to nearest, and as chosen."""

    nearest_db: float
    rounded_db: float


def decide(workbench: Workbench, variant: Variant) -> Outcome:
    """Round the weights of all layers by the requested method, if that does not make the outputs worse.

    ``auto``: only a search for a precision rounds them otherwise than to nearest.
    """
    option = workbench.knob_options.get(NAME, AUTO_ROUNDING)
    if option in (AUTO_ROUNDING, RoundingMethod.NEAREST) or variant.rounded is not None:  # decided before, in a search
        return variant, ()
    return rounded_if_better(workbench, variant, RoundingMethod(option))


def rounded_if_better(workbench: Workbench, variant: Variant, method: RoundingMethod) -> Outcome:
    """Round the weights of all layers by this method, if that gains SQNR; else ``rounded`` is empty."""
    rounded, gains = round_weights(workbench, variant, method)
    nearest = replace(variant, rounded={})
    if not gains:
        return nearest, (_without_layers(method),)
    decision = compare_roundings(workbench, variant, rounded, method, gains)
    return (rounded if decision.taken == method else nearest), (decision,)


ROUNDING = Knob(NAME, decide)


def round_weights(workbench: Workbench, variant: Variant, method: RoundingMethod) -> tuple[Variant, list[LayerGain]]:
    """The variant with the weights of all its layers rounded, and what that gains per layer, in graph order."""
    plan, graph = workbench.plan(variant), workbench.simulated_graph(variant)
    layers = list(_layers(workbench, variant, plan, graph))
    weights: dict[Edge, RoundedWeight] = {}
    gains: list[LayerGain] = []
    for batch in _batches(layers):
        moments = _moments(workbench, graph, batch)
        for layer in batch:
            weight, gain = _rounded(plan, layer, moments[layer.key], method)
            gains.append(gain)
            if weight is not None:
                weights[layer.edge] = weight
            workbench.progress(len(gains), len(layers))
    return replace(variant, rounded=weights), gains


def compare_roundings(
    workbench: Workbench, variant: Variant, rounded: Variant, method: RoundingMethod, gains: Sequence[LayerGain]
) -> Decision:
    """Decide between the variant and the rounded one by their simulations."""
    before, after = (workbench.sqnr_per_sample(tried, COMPARED_SAMPLES) for tried in (variant, rounded))
    return _decision(method, gains, before, after)


def _layers(workbench: Workbench, variant: Variant, plan: Plan, graph: ir.Model) -> Iterator[_Layer]:
    """The layers whose weight is quantized and multiplied by an activation; other constants are rounded to nearest."""
    emitted = {node.name: node for node in graph.graph}
    for unit in build_problem(variant.model, workbench.table).units:
        nodes = {node.name: node for node in unit.nodes}
        for operand in unit.operands:
            choice, array = plan.edges.get(operand.edge), constant_of(operand.value)
            if choice is None or not isinstance(choice.storage, QParams) or choice.storage.dtype is DType.S32:
                continue
            found = weight_layout(nodes[operand.edge.node], operand.edge.index)
            if found is None or array is None or not np.isfinite(array).all() or operand.edge in plan.stored:
                continue
            node = emitted[operand.edge.node]
            source, weight = node.inputs[found.source], node.inputs[operand.edge.index]
            if source is None or weight is None:
                raise TypeError(f"{node.name!r} has no input {found.source}")
            half = weight.dtype is ir.DataType.FLOAT16 and not why_not_float16(choice.storage.scale)
            size = 4 * math.prod(shape_of(source) or (0,))
            yield _Layer(unit, operand.edge, choice.storage, array, found.layout, source.name or "", size, half)


def _batches(layers: Sequence[_Layer]) -> Iterator[list[_Layer]]:
    """The layers in graph order, as many at a time as have moments that fit."""
    batch: list[_Layer] = []
    sizes: dict[Hashable, int] = {}
    for layer in layers:
        moments = 8 * math.prod(moments_shape(layer.weight.shape, layer.layout))
        more: dict[Hashable, int] = {layer.key: moments, layer.source: layer.source_bytes}
        if batch and sum({**sizes, **more}.values()) > MOMENTS_BYTES:
            yield batch
            batch, sizes = [], {}
        batch.append(layer)
        sizes |= more
    if batch:
        yield batch


def _moments(workbench: Workbench, graph: ir.Model, batch: Sequence[_Layer]) -> dict[tuple[str, Hashable], Array]:
    """The second moments of what the layers read, by their key."""
    by_key = {layer.key: layer for layer in batch}
    moments = {key: np.zeros(moments_shape(layer.weight.shape, layer.layout)) for key, layer in by_key.items()}
    names = list(dict.fromkeys(layer.source for layer in batch))
    for tensors in workbench.observe(graph, names, MOMENT_SAMPLES):
        for name, array in tensors:
            for key, layer in by_key.items():
                if layer.source == name:
                    add_moments(moments[key], layer.layout, array)
    return moments


def _rounded(
    plan: Plan, layer: _Layer, moments: Array, method: RoundingMethod
) -> tuple[RoundedWeight | None, LayerGain]:
    """The rounded weight of a layer, or None if it stays as it is, and the SQNR of its output."""
    given = _in_half(layer.params) if layer.half else layer.params
    signal = output_error(layer.weight, layer.layout, moments)
    before = _output_db(layer, quantize(layer.weight, given), given, moments, signal)
    if not math.isfinite(signal) or signal == 0:
        return None, LayerGain(before, before)
    chosen = [_chosen(plan, layer, given, moments, moments, method)]
    if method is RoundingMethod.SECOND_ORDER:
        chosen.append(_chosen(plan, layer, given, conditional_moments(moments), moments, method))
    after, params, integers = max(
        ((_output_db(layer, stored, params, moments, signal), params, stored) for params, stored in chosen),
        key=lambda candidate: candidate[0],
    )
    if after <= before:
        return None, LayerGain(before, before)
    detail = f"{method} rounding: its output from {before:.1f} to {after:.1f} dB"
    kept = integers if method is RoundingMethod.SECOND_ORDER else None
    return RoundedWeight(layer.params, params, kept, detail), LayerGain(before, after)


def _chosen(
    plan: Plan, layer: _Layer, given: QParams, known: Array, moments: Array, method: RoundingMethod
) -> tuple[QParams, Array]:
    """The scales that are best for the moments ``known``, and the integers on them."""
    params = search_scales(layer.weight, given, layer.layout, known, _allowed(plan, layer))
    if method is RoundingMethod.SECOND_ORDER:
        return params, second_order(layer.weight, params, layer.layout, moments)
    return params, quantize(layer.weight, params)


def _allowed(plan: Plan, layer: _Layer) -> Callable[[QParams], QParams]:
    """Qparams -> those with scales that the target supports, in the type in which they are emitted."""
    allowed = allowed_scales(plan, layer.unit, layer.edge, layer.params, layer.weight)

    def emitted(params: QParams) -> QParams:
        params = allowed(params)
        return _in_half(params) if layer.half and not why_not_float16(params.scale) else params

    return emitted


def _in_half(params: QParams) -> QParams:
    return QParams(params.encoding, params.scale.astype(np.float16), params.zero_point, params.axis)


def _output_db(layer: _Layer, integers: Array, params: QParams, moments: Array, signal: float) -> float:
    noise = output_error(layer.weight - dequantize(integers, params), layer.layout, moments)
    if not math.isfinite(signal) or not math.isfinite(noise):
        return math.nan
    return bounded_db(math.inf if noise <= 0 else 10 * math.log10(max(signal, np.finfo(float).tiny) / noise))


def _without_layers(method: RoundingMethod) -> Decision:
    reason = "no quantized weight is multiplied by an activation in a layer whose weights can be rounded otherwise"
    return Decision(
        NAME, WHOLE_MODEL, RoundingMethod.NEAREST, (Alternative(method, failure=reason),), CRITERION, reason, 0
    )


def _decision(
    method: RoundingMethod, gains: Sequence[LayerGain], before_db: Sequence[float], after_db: Sequence[float]
) -> Decision:
    """The decision for all layers together, from the SQNR of every sample; the plan has the figures of each layer."""
    known = [gain for gain in gains if math.isfinite(gain.nearest_db)] or [LayerGain(0.0, 0.0)]
    is_taken, reason = _judged(method, np.subtract(after_db, before_db))
    return Decision(
        knob=NAME,
        place=WHOLE_MODEL,
        taken=method if is_taken else RoundingMethod.NEAREST,
        alternatives=(
            Alternative(RoundingMethod.NEAREST, _figures(before_db, [gain.nearest_db for gain in known])),
            Alternative(method, _figures(after_db, [gain.rounded_db for gain in known])),
        ),
        rule=CRITERION,
        reason=f"{reason}; {len(gains)} layer{'s' * (len(gains) != 1)}",
        samples=len(after_db),
    )


def _judged(method: RoundingMethod, gain_db: Array) -> tuple[bool, str]:
    """Whether the gains of all samples speak for the rounding, and a text that says so."""
    if not gain_db.size:
        return True, "no output is float, so that only the outputs of layers were compared"
    mean = float(gain_db.mean())
    error = float(gain_db.std(ddof=1)) / math.sqrt(gain_db.size) if gain_db.size > 1 else 0.0
    effect = f"{method} {'gains' if mean >= 0 else 'loses'} {abs(mean):.2f} dB"
    return mean > error, f"{effect} in the mean of the samples, with a standard error of {error:.2f} dB"


def _figures(samples_db: Sequence[float], layers_db: Sequence[float]) -> dict[str, float]:
    outputs = {"mean_sqnr_db": fmean(samples_db)} if samples_db else {}
    return {**outputs, "mean_layer_sqnr_db": fmean(layers_db), "worst_layer_sqnr_db": min(layers_db)}
