"""Weights that are rounded so that the output of their layer has the least error (``--rounding``).

The input of a layer, whose second moments that needs, is what it reads in the simulation with weights rounded to
nearest. One pass over the samples collects the moments of as many layers as fit into ``MOMENTS_BYTES``, and of at least
one. A weight with several consumers is rounded for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
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
from dovetail.numerics.methods import RoundingMethod
from dovetail.numerics.rounding import output_error, search_scales, second_order
from dovetail.passes.as_float16 import why_not_float16
from dovetail.plan.constraints import Unit, build_problem
from dovetail.plan.rounded_weights import RoundedWeight, allowed_scales
from dovetail.storage import Plan
from dovetail.trials.decision import Alternative, Decision
from dovetail.trials.knob import Knob, Outcome
from dovetail.trials.variant import Variant
from dovetail.trials.workbench import Workbench, mean_db
from dovetail.verify.verdicts import bounded_db

NAME = "rounding"
# Samples from which moments are collected, and samples on which the result is compared with rounding to nearest.
MOMENT_SAMPLES, COMPARED_SAMPLES = 128, 64
MOMENTS_BYTES = 1 << 29
CRITERION = "the requested rounding, unless the worst output then has a lower SQNR, in simulation, mean per sample"


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
    """Round the weights of all layers by the requested method, if that does not make the outputs worse."""
    method = RoundingMethod(workbench.knob_options.get(NAME, RoundingMethod.NEAREST))
    if method is RoundingMethod.NEAREST:
        return variant, ()
    rounded, gains = round_weights(workbench, variant, method)
    if not gains:
        return variant, (_without_layers(method),)
    before, after = (workbench.compare_streamed(tried, COMPARED_SAMPLES) for tried in (variant, rounded))
    decision = _decision(method, gains, (mean_db(before), mean_db(after)), after.samples)
    return (rounded if decision.taken == method else variant), (decision,)


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
    params = search_scales(layer.weight, given, layer.layout, moments, _allowed(plan, layer))
    integers = None
    if method is RoundingMethod.SECOND_ORDER:
        integers = second_order(layer.weight, params, layer.layout, moments)
    stored = quantize(layer.weight, params) if integers is None else integers
    after = _output_db(layer, stored, params, moments, signal)
    if after <= before:
        return None, LayerGain(before, before)
    detail = f"{method} rounding: its output from {before:.1f} to {after:.1f} dB"
    return RoundedWeight(layer.params, params, integers, detail), LayerGain(before, after)


def _allowed(plan: Plan, layer: _Layer) -> Callable[[Array], Array]:
    """Scales -> those that the target supports, in the type in which they are emitted."""
    allowed = allowed_scales(plan, layer.unit, layer.edge, layer.params, layer.weight)

    def emitted(scale: Array) -> Array:
        scale = allowed(scale)
        return scale.astype(np.float16).astype(np.float32) if layer.half and not why_not_float16(scale) else scale

    return emitted


def _in_half(params: QParams) -> QParams:
    return QParams(params.encoding, params.scale.astype(np.float16), params.zero_point, params.axis)


def _output_db(layer: _Layer, integers: Array, params: QParams, moments: Array, signal: float) -> float:
    noise = output_error(layer.weight - dequantize(integers, params), layer.layout, moments)
    if not math.isfinite(signal) or not math.isfinite(noise):
        return math.nan
    return bounded_db(math.inf if noise <= 0 else 10 * math.log10(max(signal, np.finfo(float).tiny) / noise))


def _without_layers(method: RoundingMethod) -> Decision:
    reason = "no weight that is multiplied by an activation is quantized"
    return Decision(
        NAME, WHOLE_MODEL, RoundingMethod.NEAREST, (Alternative(method, failure=reason),), CRITERION, reason, 0
    )


def _decision(
    method: RoundingMethod, gains: Sequence[LayerGain], outputs_db: tuple[float, float], samples: int
) -> Decision:
    """The decision for all layers together; the plan has the figures of each."""
    nearest_db, rounded_db = outputs_db
    known = [gain for gain in gains if math.isfinite(gain.nearest_db)]
    figures: list[Mapping[str, float]] = [
        {
            "sqnr_db": output,
            "mean_layer_sqnr_db": fmean(layer_db),
            "worst_layer_sqnr_db": min(layer_db),
            "layers": len(gains),
        }
        for output, layer_db in (
            (nearest_db, [gain.nearest_db for gain in known] or [0.0]),
            (rounded_db, [gain.rounded_db for gain in known] or [0.0]),
        )
    ]
    effect = "improves" if rounded_db >= nearest_db else "lowers"
    change = abs(rounded_db - nearest_db)
    return Decision(
        knob=NAME,
        place=WHOLE_MODEL,
        taken=method if rounded_db >= nearest_db else RoundingMethod.NEAREST,
        alternatives=(Alternative(RoundingMethod.NEAREST, figures[0]), Alternative(method, figures[1])),
        rule=CRITERION,
        reason=f"{method} {effect} the worst output by {change:.2f} dB in simulation",
        samples=samples,
    )
