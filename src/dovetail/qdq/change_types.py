"""A QDQ model with the types of its quantized tensors changed, and nothing else: what another target's types cost.

Every tensor is first clipped to the range that it had, so that only the rounding changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import Array, DType, Granularity, QParams
from dovetail.model.edit import constant_of
from dovetail.model.origin import each_value, origin_of
from dovetail.numerics.affine import fake_quantize, quantize
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.invert import invert
from dovetail.qdq.params import is_quantize, qparams_of, use_onnx_domain
from dovetail.qdq.restore_activations import clip_before
from dovetail.qdq.value_ranges import represented
from dovetail.storage import IN_FLOAT32, Choice, Plan, Reason, Storage


@dataclass(frozen=True, slots=True)
class Types:
    """The new qparams of tensors and of constants by original name; a tensor without them is float."""

    tensors: Mapping[str, QParams]
    constants: Mapping[str, QParams]


def change_types(model: ir.Model, types: Types) -> ir.Model:
    """A copy of a QDQ model in which every tensor and every constant has its new type."""
    clipped = model.clone()
    clipped.graph.meta.clear()
    use_onnx_domain(clipped)
    _keep_ranges(clipped)
    float_model, plan = invert(clipped)
    return emit_qdq(float_model, _changed(float_model, plan, types))


def _keep_ranges(model: ir.Model) -> None:
    """Clip the input of every QuantizeLinear to the range that it represents."""
    for value in list(each_value(model.graph)):
        by_params: dict[QParams, list[ir.Node]] = {}
        for node, index in value.uses():
            if is_quantize(node) and index == 0 and constant_of(value) is None:
                by_params.setdefault(qparams_of(node), []).append(node)
        for params, quantizes in by_params.items():
            if params.axis is None:
                clip_before(quantizes, value, represented(params))


def _changed(model: ir.Model, plan: Plan, types: Types) -> Plan:
    values = {str(value.name): value for value in each_value(model.graph)}
    edges, stored = dict(plan.edges), dict(plan.stored)
    quantized = {origin_of(values[n]).name for n, c in plan.tensors.items() if isinstance(c.storage, QParams)}
    for node in model.graph:
        for index, value in enumerate(node.inputs):
            edge, array = Edge(str(node.name), index), constant_of(value)
            if value is not None and array is None and edge in edges:
                quantized.add(origin_of(value).name)
                edges[edge] = _choice(types.tensors.get(origin_of(value).name, IN_FLOAT32))
            elif value is not None and array is not None and array.dtype == np.float32:
                params = _fitting(types.constants.get(str(value.name)), array)
                if params is not None:
                    edges[edge], stored[edge] = _choice(params), quantize(array, params)
    tensors = dict(plan.tensors)
    for name, choice in plan.tensors.items():
        origin = origin_of(values[name])
        if isinstance(choice.storage, QParams) or (origin.exact and origin.name not in quantized):
            tensors[name] = _choice(types.tensors.get(origin.name, IN_FLOAT32))
    return replace(plan, tensors=tensors, edges=edges, stored=stored)


def _fitting(params: QParams | None, array: Array) -> QParams | None:
    """The new qparams of a constant on the axis where they fit best: a pass may have transposed it.

    None if it keeps its type, as a bias does, whose scale follows from others.
    """
    if params is None or params.dtype is DType.S32:
        return None
    if params.encoding.granularity not in (Granularity.TENSOR, Granularity.AXIS):
        return None
    candidates = [params]
    if params.axis is not None:
        axes = [axis for axis, size in enumerate(array.shape) if size == params.scale.size]
        candidates = [QParams(params.encoding, params.scale, params.zero_point, axis) for axis in axes]
    covering = [candidate for candidate in candidates if _covers(candidate, array)]
    return min(covering, key=lambda candidate: _error(array, candidate), default=None)


def _covers(params: QParams, array: Array) -> bool:
    """Whether qparams clip no value by more than a step; those of a slice or of scaled values need not fit."""
    shape = [-1 if axis == params.axis else 1 for axis in range(array.ndim)]
    error = np.abs(fake_quantize(array, params) - array)
    return bool(np.all(error <= (params.scale if params.axis is None else params.scale.reshape(shape))))


def _choice(storage: Storage) -> Choice:
    return Choice(storage, Reason.RECORDED, "type changed")


def _error(array: Array, params: QParams) -> float:
    return float(np.sum((fake_quantize(array, params).astype(np.float64) - array) ** 2))
