"""Scales and zero points of a model that another tool quantized: kept wherever the plan quantizes the same tensor."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, Encoding, Granularity, QParams
from dovetail.model.attention import ScalePlace, scale_at
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import constant_of, input_axis, is_op
from dovetail.model.origin import Origin
from dovetail.numerics.affine import fake_quantize
from dovetail.numerics.grid import FLOAT8_HIGHEST
from dovetail.numerics.ranges import params_from_range
from dovetail.plan.moved_constants import of_moved_constant
from dovetail.plan.same_values import in_encoding, with_sign_of
from dovetail.qdq.value_ranges import ValueRange, represented, value_ranges
from dovetail.storage import Plan, ScaleSource, SourcedQParams

# A dequantized weight is on its grid up to the rounding of float32, or of float16 if the model was float16.
_ON_GRID_RTOL = 1e-3
# Scales are often float16, and some tools divide by 128 instead of 127 or add an epsilon.
_LARGEST_RTOL = 1e-2
# How many operators qparams are propagated across: Q and K are two or three away from a known scale.
_STEPS = 6

FROM_MODEL = "scale and zero point from the input model"


@dataclass(frozen=True, slots=True)
class ImportedQParams:
    """The qparams that a quantized model has for its tensors and constants, by their names in its float graph.

    ``tensors``: the model's own qparams; ``implied``: qparams that follow for tensors that are a reshaped or scaled
    copy of those. ``several``: tensors whose consumers had different qparams; the widest ones are kept. ``bounds``: the
    values that a tensor can have at all, where its operators bound them, as a Relu or a Clip does. ``weights``: the
    float values of the constants, if they are not on the grid of their qparams. ``floats``: tensors and constants that
    were meant to be float. ``unfit``: constants in blocks that no
    kernel has: not symmetric, or not along the input channels. ``from_file``: whether the qparams came in a file beside
    a float model. ``moved``: tensors of the graph that is planned -> the original tensor whose values they hold in
    another shape.
    """

    tensors: Mapping[str, QParams]
    implied: Mapping[str, QParams]
    constants: Mapping[str, tuple[QParams, ...]]
    several: frozenset[str] = frozenset()
    bounds: Mapping[str, ValueRange] = field(default_factory=dict)
    weights: Mapping[str, Array] = field(default_factory=dict)
    floats: frozenset[str] = frozenset()
    unfit: frozenset[str] = frozenset()
    from_file: bool = False
    moved: Mapping[str, str] = field(default_factory=dict)

    def of_tensor(self, names: Iterable[str], encoding: Encoding) -> SourcedQParams | None:
        """The imported qparams of the first of these tensors that has any, converted to an encoding."""
        names = list(names)
        propagated = f"{FROM_MODEL}, propagated across scaling or data-movement operators"
        for qparams, detail in ((self.tensors, FROM_MODEL), (self.implied, propagated)):
            name = next((name for name in names if name in qparams), None)
            if name is None:
                continue
            given = with_sign_of(qparams[name], encoding) if self.from_file else qparams[name]
            exact = in_encoding(given, encoding)
            if exact is None:
                detail = "same range as in the input model, in another encoding"
                params = _by_range(qparams[name], encoding, self.bounds.get(name, ValueRange()))
                return SourcedQParams(params, ScaleSource.GIVEN_CHANGED, detail)
            if name in self.several:
                return SourcedQParams(exact, ScaleSource.GIVEN_CHANGED, "widest of several scales in the input model")
            return SourcedQParams(exact, ScaleSource.GIVEN, detail)
        return None

    def of_constant(self, origin: Origin, array: Array, computed: QParams) -> QParams | None:
        """The imported qparams of a constant, in the granularity of ``computed`` (those from its values) or coarser.

        Passes may have transposed or sliced a weight. Its imported qparams still apply if it is unchanged, if its
        values are on their grid, or if they map its largest values to the end of the grid.
        """
        for params in (params for name in origin.names for params in self.constants.get(name, ())):
            unchanged = (
                origin.exact and params.axis in (None, computed.axis) and params.scale.size in (1, computed.scale.size)
            )
            in_blocks = params.encoding.is_blocked or computed.encoding.is_blocked
            if in_blocks and params.encoding != computed.encoding:
                continue
            if unchanged and params.dtype is computed.dtype and not params.zero_point.any():
                return params
            for candidate in _relaid(params, computed):
                if _on_grid(array, candidate) or _from_largest(array, candidate):
                    return candidate
        for name in origin.names:
            for params in self.constants.get(name, ()) if name in self.weights else ():
                moved = of_moved_constant(self.weights[name], with_sign_of(params, computed.encoding), array, computed)
                if moved is not None:
                    return moved
        return None

    def same_step(self, origin: Origin, array: Array, computed: QParams) -> QParams | None:
        """Qparams with the imported step of a constant, in an encoding that is symmetric or has more bits.

        The constant is already on that grid: with the same step it stays there, with any other it would be rounded a
        second time. Channels that lose more by clipping to the symmetric range get the step of ``computed``.
        """
        for params in (params for name in origin.names for params in self.constants.get(name, ())):
            if not params.dtype.is_integer or params.dtype.bits > computed.dtype.bits or computed.zero_point.any():
                continue
            if params.encoding.is_blocked or computed.encoding.is_blocked:
                continue
            if params.axis is not None and (params.axis, params.scale.shape) != (computed.axis, computed.scale.shape):
                continue
            if not _on_grid(array, params):
                continue
            scale = np.broadcast_to(params.scale, computed.scale.shape)
            given = QParams(computed.encoding, scale, computed.zero_point, computed.axis)
            kept = _errors(array, given) <= _errors(array, computed)
            if np.any(kept):
                scale = np.where(kept, given.scale, computed.scale)
                return QParams(computed.encoding, scale, computed.zero_point, computed.axis)
        return None


def imported_qparams(model: ir.Model, plan: Plan, *, from_file: bool = False) -> ImportedQParams:
    """The qparams in an inverted model's plan: of tensors, of edges (the widest, where they differ), of constants.

    ``from_file``: the qparams came in a file beside the float model. Its constants are not on their grid, and a tensor
    that the plan has in float was meant to be.
    """
    tensors = {name: c.storage for name, c in plan.tensors.items() if isinstance(c.storage, QParams)}
    quantized_tensors, several = frozenset(tensors), set[str]()
    constants: dict[str, tuple[QParams, ...]] = {}
    weights, floats, unfit = dict[str, Array](), set[str](), set[str]()
    nodes = {node.name or "": node for node in model.graph}
    for edge, choice in plan.edges.items():
        value = nodes[edge.node].inputs[edge.index]
        if value is None:
            continue
        name = str(value.name)
        if not isinstance(choice.storage, QParams):
            floats.add(name)
            continue
        if (array := constant_of(value)) is not None:
            weights[name] = array
            constants[name] = (*constants.get(name, ()), choice.storage)
            if choice.storage.encoding.is_blocked and not _blocks_fit(nodes[edge.node], array, choice.storage):
                unfit.add(name)
        elif name not in tensors:
            tensors[name] = choice.storage
        elif name not in quantized_tensors and tensors[name] != choice.storage:
            several.add(name)
            tensors[name] = max(tensors[name], choice.storage, key=_width)
    bounds = {str(value.name): ends for value, ends in value_ranges(model.graph).items()}
    implied = _implied(model.graph, tensors)
    imported = ImportedQParams(tensors, implied, constants, frozenset(several), bounds, unfit=frozenset(unfit))
    if not from_file:
        return imported
    in_float = frozenset({*floats, *_float_tensors(plan)})
    return replace(imported, weights=weights, floats=in_float, from_file=True)


def _blocks_fit(node: ir.Node, array: Array, params: QParams) -> bool:
    """Whether blocks are symmetric and along the input channels of a layer's weight."""
    if params.axis is None or array.ndim < 2 or not params.encoding.symmetric:
        return False
    return params.axis % array.ndim == input_axis(node, array.ndim)


def _float_tensors(plan: Plan) -> list[str]:
    return [name for name, choice in plan.tensors.items() if not isinstance(choice.storage, QParams)]


def _width(params: QParams) -> float:
    """The width of the range that qparams represent, at the widest channel."""
    steps = params.dtype.grid.high - params.dtype.grid.low if params.dtype.is_integer else 2 * FLOAT8_HIGHEST
    return float(params.scale.max()) * steps


def _implied(graph: ir.Graph, tensors: Mapping[str, QParams]) -> dict[str, QParams]:
    """The qparams of neighboring tensors: data movement keeps the scale, multiplying by a constant multiplies it."""
    qparams = {name: params for name, params in tensors.items() if params.axis is None}
    relations = [relation for node in graph for relation in _related(node)]
    for _ in range(_STEPS):
        for source, output, factor in relations:
            if source in qparams and output not in qparams:
                qparams[output] = _times(qparams[source], factor)
            elif output in qparams and source not in qparams:
                qparams[source] = _times(qparams[output], 1 / factor)
    return {name: params for name, params in qparams.items() if name not in tensors}


def _related(node: ir.Node) -> Iterator[tuple[str, str, float]]:
    """(input, output, factor) of an operator that only rearranges values or multiplies them by one constant."""
    if is_op(node, *DATA_MOVEMENT_OPS, "Cast") and node.inputs[0] is not None:
        yield from ((str(node.inputs[0].name), str(output.name), 1.0) for output in node.outputs)
    scale = scale_at(node, ScalePlace.QUERY)
    if scale is not None and scale.factor:
        yield str(scale.data.name), str(node.outputs[0].name), abs(scale.factor)


def _times(params: QParams, factor: float) -> QParams:
    return QParams(params.encoding, params.scale * np.float32(factor), params.zero_point)


def _by_range(params: QParams, encoding: Encoding, bounds: ValueRange) -> QParams:
    """The qparams in another encoding that represent the same range, as far as the tensor can have such values.

    A symmetric range of what a Relu writes is half unused. And a target that fuses a Relu or Clip into the operator
    before it may clip to the range of the output only: one that starts below 0 then loses the Relu.
    """
    low, high = represented(params)
    return params_from_range(max(low, min(bounds.low, 0.0)), min(high, max(bounds.high, 0.0)), encoding)


def _relaid(params: QParams, computed: QParams) -> Iterator[QParams]:
    """The imported qparams of a constant, as they would be after it was transposed or sliced along its channels."""
    params = with_sign_of(params, computed.encoding)
    symmetric = computed.encoding.symmetric
    if params.dtype is not computed.dtype or (symmetric and params.zero_point.any() != computed.zero_point.any()):
        return
    if params.axis is None:
        yield params
        return
    if params.encoding.is_blocked:
        candidates = [params, _transposed(params)] if params.scale.ndim == 2 else [params]
        if computed.scale.shape[2:] == (1, 1):  # a matrix that became the kernel of a convolution
            candidates += [_as_kernel(candidate) for candidate in candidates if candidate.scale.ndim == 2]
        yield from (c for c in candidates if (c.axis, c.scale.shape) == (computed.axis, computed.scale.shape))
        return
    if computed.axis is None or params.encoding.granularity is not Granularity.AXIS:
        return
    length = computed.scale.size
    for start in itertools.chain(range(0, params.scale.size - length + 1, length)):
        channels = slice(start, start + length)
        yield QParams(computed.encoding, params.scale[channels], params.zero_point[channels], computed.axis)


def _transposed(params: QParams) -> QParams:
    """The qparams of a transposed matrix."""
    levels = [None if level is None else level.T.copy() for level in (params.int_scale, params.channel_scale)]
    axis = 1 - (params.axis or 0) % 2
    return QParams(params.encoding, params.scale.T, params.zero_point.T, axis, *levels)


def _as_kernel(params: QParams) -> QParams:
    """The qparams of a matrix with two more axes of size 1."""
    levels = [None if level is None else level[:, :, None, None] for level in (params.int_scale, params.channel_scale)]
    scale, zero_point = (array[:, :, None, None] for array in (params.scale, params.zero_point))
    return QParams(params.encoding, scale, zero_point, params.axis, *levels)


def _errors(array: Array, params: QParams) -> Array:
    """The squared error of a constant, per channel of its qparams."""
    reduced = None if params.axis is None else tuple(i for i in range(array.ndim) if i != params.axis)
    squared = (fake_quantize(array, params).astype(np.float64) - array) ** 2
    return np.asarray(np.sum(squared, axis=reduced))


def _from_largest(array: Array, params: QParams) -> bool:
    """Whether the largest magnitude of every channel is at the end of the quantized grid."""
    reduced = None if params.axis is None else tuple(i for i in range(array.ndim) if i != params.axis)
    largest = np.abs(array).max(axis=reduced)
    highest = params.dtype.grid.high if params.dtype.is_integer else FLOAT8_HIGHEST
    return bool(np.allclose(params.scale * highest, largest, rtol=_LARGEST_RTOL, atol=0))


def _on_grid(array: Array, params: QParams) -> bool:
    step = float(params.scale.max())
    return bool(np.allclose(fake_quantize(array, params), array, rtol=_ON_GRID_RTOL, atol=step * _ON_GRID_RTOL))
