"""Numbers that came with a model which another tool quantized: kept wherever the plan stores the same tensor."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, Encoding, Granularity, QParams
from dovetail.model.attention import ScalePlace, scale_at
from dovetail.model.edit import constant_of, is_op
from dovetail.model.movers import MOVERS
from dovetail.model.origin import Origin
from dovetail.numerics.affine import fake_quantize
from dovetail.numerics.grid import FLOAT8_HIGHEST
from dovetail.numerics.ranges import params_from_range
from dovetail.storage import Plan, ScaleSource, SourcedQParams

# A weight that was read back lies on its grid but for the rounding of float32, and of float16 where it was that.
_ON_GRID_RTOL = 1e-3
# Scales are often float16, and some tools divide by 128 or add an epsilon.
_LARGEST_RTOL = 1e-2
# How often numbers are handed on from tensor to tensor: q and k of an attention are two or three steps from a scale.
_STEPS = 6


@dataclass(frozen=True, slots=True)
class ImportedQParams:
    """What a model says of its tensors and constants, by their names in the float graph that it stands for.

    ``tensors`` has what the model says itself; ``implied`` what follows from it, for tensors that hold the same
    numbers moved or scaled. ``several``: tensors whose readers had different numbers, of which the widest are here.
    """

    tensors: Mapping[str, QParams]
    implied: Mapping[str, QParams]
    constants: Mapping[str, tuple[QParams, ...]]
    several: frozenset[str] = frozenset()

    def of_tensor(self, names: Iterable[str], encoding: Encoding) -> SourcedQParams | None:
        """The numbers of the first of these tensors that has any, in an encoding."""
        names = list(names)
        for known, text in ((self.tensors, "as given"), (self.implied, "as given, scaled or moved")):
            name = next((name for name in names if name in known), None)
            if name is None:
                continue
            exact = _same_kind(known[name], encoding)
            if exact is None:
                text = "from the range of the given numbers, which are of another kind"
                return SourcedQParams(_by_range(known[name], encoding), ScaleSource.GIVEN_CHANGED, text)
            if name in self.several:
                return SourcedQParams(exact, ScaleSource.GIVEN_CHANGED, "the widest of several given numbers")
            return SourcedQParams(exact, ScaleSource.GIVEN, text)
        return None

    def of_constant(self, origin: Origin, array: Array, wanted: QParams) -> QParams | None:
        """The given numbers of a constant, in the granularity of ``wanted`` or coarser.

        Passes may have turned a weight or cut it: numbers belong to it if it is as it was, if it lies on their grid, or
        if they were made from its largest values.
        """
        for params in (one for name in origin.names for one in self.constants.get(name, ())):
            same = origin.exact and params.axis in (None, wanted.axis) and params.scale.size in (1, wanted.scale.size)
            if same and params.dtype is wanted.dtype and not params.zero_point.any():
                return params
            for each in _as_seen(params, wanted):
                if _on_grid(array, each) or _from_largest(array, each):
                    return each
        return None


def imported_qparams(model: ir.Model, plan: Plan) -> ImportedQParams:
    """The numbers of an inverted model: of tensors, of edges (the widest, where they differ), and of constants."""
    tensors = {name: c.storage for name, c in plan.tensors.items() if isinstance(c.storage, QParams)}
    whole, several = frozenset(tensors), set[str]()
    constants: dict[str, tuple[QParams, ...]] = {}
    nodes = {node.name or "": node for node in model.graph}
    for edge, choice in plan.edges.items():
        value = nodes[edge.node].inputs[edge.index]
        if value is None or not isinstance(choice.storage, QParams):
            continue
        name = str(value.name)
        if constant_of(value) is not None:
            constants[name] = (*constants.get(name, ()), choice.storage)
        elif name not in tensors:
            tensors[name] = choice.storage
        elif name not in whole and tensors[name] != choice.storage:
            several.add(name)
            tensors[name] = max(tensors[name], choice.storage, key=_width)
    return ImportedQParams(tensors, _implied(model.graph, tensors), constants, frozenset(several))


def _width(params: QParams) -> float:
    """How much a storage holds, at its widest channel."""
    steps = params.dtype.grid.high - params.dtype.grid.low if params.dtype.is_integer else 2 * FLOAT8_HIGHEST
    return float(params.scale.max()) * steps


def _implied(graph: ir.Graph, tensors: Mapping[str, QParams]) -> dict[str, QParams]:
    """What follows for tensors beside them: moving changes no scale, multiplying by a number multiplies it."""
    known = {name: params for name, params in tensors.items() if params.axis is None}
    pairs = [pair for node in graph for pair in _related(node)]
    for _ in range(_STEPS):
        for source, output, factor in pairs:
            if source in known and output not in known:
                known[output] = _times(known[source], factor)
            elif output in known and source not in known:
                known[source] = _times(known[output], 1 / factor)
    return {name: params for name, params in known.items() if name not in tensors}


def _related(node: ir.Node) -> Iterator[tuple[str, str, float]]:
    """(what goes in, what comes out, factor) where an operator only moves numbers or multiplies them by one."""
    if is_op(node, *MOVERS, "Cast") and node.inputs[0] is not None:
        yield from ((str(node.inputs[0].name), str(output.name), 1.0) for output in node.outputs)
    scale = scale_at(node, ScalePlace.QUERY)
    if scale is not None and scale.factor:
        yield str(scale.data.name), str(node.outputs[0].name), abs(scale.factor)


def _times(params: QParams, factor: float) -> QParams:
    return QParams(params.encoding, params.scale * np.float32(factor), params.zero_point)


def _same_kind(found: QParams, encoding: Encoding) -> QParams | None:
    """The numbers as they are, where the encoding can say them."""
    if found.dtype is not encoding.dtype or found.axis is not None or encoding.granularity is not Granularity.TENSOR:
        return None
    if encoding.symmetric and not found.encoding.symmetric:
        return None
    return QParams(encoding, found.scale, found.zero_point)


def _by_range(found: QParams, encoding: Encoding) -> QParams:
    """Numbers of another kind that hold what the given ones hold."""
    low, high = (found.dtype.grid.low, found.dtype.grid.high) if found.dtype.is_integer else (
        -FLOAT8_HIGHEST,
        FLOAT8_HIGHEST,
    )  # fmt: skip
    scale = found.scale.astype(np.float64)
    ends = (low - found.zero_point) * scale, (high - found.zero_point) * scale
    return params_from_range(float(ends[0].min()), float(ends[1].max()), encoding)


def _as_seen(params: QParams, wanted: QParams) -> Iterator[QParams]:
    """Given numbers of a constant as another layout of it, or a part of it, would have them."""
    if params.dtype is not wanted.dtype or params.zero_point.any() != wanted.zero_point.any():
        return
    if params.axis is None:
        yield params
        return
    if wanted.axis is None or params.encoding.granularity is not Granularity.AXIS:
        return
    length = wanted.scale.size
    for start in itertools.chain(range(0, params.scale.size - length + 1, length)):
        part = slice(start, start + length)
        yield QParams(wanted.encoding, params.scale[part], params.zero_point[part], wanted.axis)


def _from_largest(array: Array, params: QParams) -> bool:
    """Whether the largest value of every channel is what the largest stored value stands for."""
    others = None if params.axis is None else tuple(i for i in range(array.ndim) if i != params.axis)
    largest = np.abs(array).max(axis=others)
    highest = params.dtype.grid.high if params.dtype.is_integer else FLOAT8_HIGHEST
    return bool(np.allclose(params.scale * highest, largest, rtol=_LARGEST_RTOL, atol=0))


def _on_grid(array: Array, params: QParams) -> bool:
    step = float(params.scale.max())
    return bool(np.allclose(fake_quantize(array, params), array, rtol=_ON_GRID_RTOL, atol=step * _ON_GRID_RTOL))
