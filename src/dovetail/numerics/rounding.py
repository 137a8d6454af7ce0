"""Weights are rounded so that the output of their layer has the least error, given the second moments of its input.

With E the error of a weight and H the sum of x x^T over the inputs x, the squared error of the layer's outputs is
tr(E H E^T): one term per output. Nothing here knows about operators or targets: a weight has a grid (its qparams), a
layout and moments. ``search_scales`` chooses among scales and rounds to nearest; ``second_order`` keeps the scales and
chooses the integers, as GPTQ does (Frantar et al., 2023): inputs one after the other, the error of each is corrected by
those that are not rounded yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dovetail.encoding import Array, DType, Granularity, QParams
from dovetail.numerics.affine import dequantize, from_float8, quantize, to_float8
from dovetail.numerics.block import spread
from dovetail.numerics.grid import SMALLEST_SCALE
from dovetail.numerics.layouts import Layout
from dovetail.numerics.lpbq import expand_blocks
from dovetail.numerics.lpbq_search import choose_integers, search_integers

# Powers of two by which a scale is multiplied: an integer grid is shrunk to a quarter at most, with finer steps around
# the best factor. A float8 grid has the same steps at twice the scale, so that one octave is enough.
_COARSE = -np.linspace(0.2, 2.0, 10)
_FINER = np.asarray([-0.12, -0.06, 0.06, 0.12])
_FLOAT8 = np.delete(np.arange(-4, 4) / 8, 4)
# Added to the diagonal of the moments, relative to its mean: moments of few samples do not have full rank.
_DAMPING = 0.01
# Columns after which the columns after them are corrected, in one matrix product.
_LAZY = 128

Allowed = Callable[[QParams], QParams]  # the same qparams, with scales changed where the target does not support them


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """The grid of every element of a weight; scale and zero point have the shape of the matrices."""

    dtype: DType
    scale: Array
    zero_point: Array

    @classmethod
    def of(cls, shape: tuple[int, ...], params: QParams, layout: Layout) -> _Grid:
        view, scale, zero_point = spread(shape, params)
        scale, zero_point = (
            layout.matrices(np.broadcast_to(array, view).reshape(shape)) for array in (scale, zero_point)
        )
        return cls(params.dtype, scale, zero_point.astype(np.float32))

    def columns(self, order: Array) -> _Grid:
        """The grid with the columns of every group in this order."""
        scale, zero_point = (np.take_along_axis(a, order[:, None], axis=2) for a in (self.scale, self.zero_point))
        return _Grid(self.dtype, scale, zero_point)

    def steps(self, real: Array, at: int | slice = slice(None)) -> Array:
        """Real values of the columns ``at`` -> the nearest steps of the grid; real = steps * scale."""
        scaled = real / self.scale[..., at]
        if self.dtype is DType.F8E4M3:
            return from_float8(to_float8(scaled.astype(np.float32, copy=False)))
        grid, zero_point = self.dtype.grid, self.zero_point[..., at]
        return np.clip(np.rint(scaled), grid.low - zero_point, grid.high - zero_point)


def output_error(error: Array, layout: Layout, moments: Array) -> float:
    """The error of a weight, in its shape -> the squared error of the layer's outputs."""
    return float(_of_outputs(layout.matrices(error), moments).sum())


def search_scales(weight: Array, params: QParams, layout: Layout, moments: Array, allowed: Allowed) -> QParams:
    """The qparams whose scales give the least output error with rounding to nearest; those given are candidates too.

    Scales of other columns (blocks) are chosen one after the other, with the errors of the others as they are. Of
    expanded blocks, this chooses the scales that the integers should be closest to; then the integers and the scales of
    channels are searched. Scales whose columns differ between outputs are not searched.
    """
    largest = moments.max(initial=0)
    columns = _columns_by_scale(weight.shape, params, layout)
    if columns is None or not largest:
        return params
    # Candidates are compared in float32, the result in float64.
    case = _Case(weight, layout, columns, (moments / largest).astype(np.float32))
    if params.encoding.granularity is Granularity.EXPANDED_BLOCK:
        found = _expanded(case, params, allowed)
    else:
        found = _shrunk(case, params, allowed)
    before, after = (output_error(weight - _nearest(weight, tried), layout, moments) for tried in (params, found))
    return found if after < before else params


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """A weight whose scales are searched; ``columns``: see ``_columns_by_scale``."""

    weight: Array
    layout: Layout
    columns: list[tuple[Array, Array]]
    moments: Array

    def best(self, candidates: Sequence[QParams]) -> Array:
        """The number of the candidate with the least output error, for every scale; the first one is in use before."""
        errors = [self._error(params) for params in candidates]
        return _best(errors, self.columns, self.moments, candidates[0].scale.size)

    def of_scales(self, params: QParams) -> Array:
        """The squared error of the outputs that have each scale, in the shape of the scales."""
        per_output = _of_outputs(self._error(params), self.moments)
        sums = np.zeros(params.scale.size)
        for _, ids in self.columns:
            sums += np.bincount(ids.reshape(-1), per_output.reshape(-1), minlength=sums.size)
        return sums.reshape(params.scale.shape)

    def _error(self, params: QParams) -> Array:
        return self.layout.matrices(self.weight - _nearest(self.weight, params))


def _shrunk(case: _Case, params: QParams, allowed: Allowed) -> QParams:
    """The qparams with every scale multiplied by the best factor."""
    exponents = np.zeros(params.scale.shape)
    for offsets in (_FLOAT8,) if params.dtype is DType.F8E4M3 else (_COARSE, _FINER):
        candidates = [exponents, *(exponents + offset for offset in offsets)]
        chosen = case.best([_times(params, candidate, allowed) for candidate in candidates])
        exponents = np.choose(chosen.reshape(exponents.shape), candidates)
    return _times(params, exponents, allowed)


def _expanded(case: _Case, params: QParams, allowed: Allowed) -> QParams:
    """Expanded blocks near those that plain blocks with the least error would become."""
    encoding = replace(params.encoding, granularity=Granularity.BLOCK, expanded_bits=0)
    plain = _shrunk(case, QParams(encoding, params.scale, params.zero_point, params.axis), lambda scales: scales)

    def closest(candidates: Sequence[QParams]) -> tuple[QParams, Array]:
        tried = [allowed(candidate) for candidate in candidates]
        chosen = choose_integers(tried, case.best(tried))
        return chosen, case.of_scales(chosen)

    return search_integers(expand_blocks(plain.scale, params.encoding, params.axis or 0), closest)


def _best(errors: list[Array], columns: list[tuple[Array, Array]], moments: Array, scales: int) -> Array:
    """Errors of a weight, one per candidate -> the candidate of every scale with the least output error."""
    chosen = np.zeros(scales, np.intp)
    total = np.array(errors[0])
    outputs = total @ moments if len(columns) > 1 else None  # E H, kept up to date
    for indices, ids in columns:
        inner = moments if len(columns) == 1 else moments[:, indices[:, None], indices]
        costs = []
        linear = 0.0 if outputs is None else 2 * (outputs[..., indices] - total[..., indices] @ inner)
        for error in errors:
            tried = error[..., indices]
            per_output = ((tried @ inner + linear) * tried).sum(axis=-1, dtype=np.float64)
            costs.append(np.bincount(ids.reshape(-1), per_output.reshape(-1), minlength=scales))
        least = np.argmin(costs, axis=0)
        numbers = np.unique(ids)
        chosen[numbers] = least[numbers]
        if outputs is not None:
            taken = np.choose(least[ids][..., None], [error[..., indices] for error in errors]) - total[..., indices]
            outputs += taken @ moments[:, indices]
            total[..., indices] += taken
    return chosen


def second_order(weight: Array, params: QParams, layout: Layout, moments: Array) -> Array:
    """The quantized values of a weight on its grid; for no output worse than those of rounding to nearest."""
    real, grid = layout.matrices(weight.astype(np.float32)), _Grid.of(weight.shape, params, layout)
    nearest = grid.steps(real)
    steps = _corrected(real, grid, moments)
    before, after = (_of_outputs(real - chosen * grid.scale, moments) for chosen in (nearest, steps))
    chosen = np.where((after < before)[..., None], steps, nearest)
    return _stored(layout.weight(chosen + grid.zero_point), params.dtype)


def _stored(levels: Array, dtype: DType) -> Array:
    """Quantized values as floats -> in the dtype that stores them."""
    if dtype.bits == 4:
        return np.ascontiguousarray(levels).astype(np.int8).astype(dtype.numpy)
    return np.ascontiguousarray(levels).astype(dtype.numpy)


def conditional_moments(moments: Array) -> Array:
    """The moments with which scales are searched for ``second_order``: a diagonal, the variance of every input that
    those rounded after it do not predict.

    Weighted with these variances, the squared errors of rounding add up to the output error that is left after the
    correction; with the moments themselves, scales would be chosen whose errors cancel without it.
    """
    order = _order(moments)
    variances = np.empty(order.shape)
    unpredicted = np.diagonal(_upper(_ordered(moments, order)), axis1=1, axis2=2) ** 2
    np.put_along_axis(variances, order, unpredicted, axis=1)
    return np.asarray(variances[:, :, None] * np.eye(order.shape[1]))


def _order(moments: Array) -> Array:
    """The order in which inputs are rounded: those with the largest moments first."""
    return np.argsort(-np.diagonal(moments, axis1=1, axis2=2), axis=1, kind="stable")


def _ordered(moments: Array, order: Array) -> Array:
    return np.take_along_axis(np.take_along_axis(moments, order[:, :, None], 1), order[:, None], 2)


def _corrected(real: Array, grid: _Grid, moments: Array) -> Array:
    """The steps of every column, in the order of descending moments; each error is corrected by the columns after."""
    if not np.diagonal(moments, axis1=1, axis2=2).any():
        return grid.steps(real)
    order = _order(moments)
    real, grid = np.take_along_axis(real, order[:, None], axis=2), grid.columns(order)
    # U, upper triangular, with U^T U = the inverse of the damped moments.
    factors = np.triu(np.linalg.inv(_upper(_ordered(moments, order)))).astype(np.float32)
    steps = np.empty_like(real)
    for start in range(0, real.shape[2], _LAZY):
        stop = min(start + _LAZY, real.shape[2])
        errors = np.empty((*real.shape[:2], stop - start), np.float32)
        for at in range(start, stop):
            steps[..., at] = grid.steps(real[..., at], at)
            error = (real[..., at] - steps[..., at] * grid.scale[..., at]) / factors[:, None, at, at]
            real[..., at:stop] -= error[..., None] * factors[:, None, at, at:stop]
            errors[..., at - start] = error
        real[..., stop:] -= errors @ factors[:, start:stop, stop:]
    return np.take_along_axis(steps, np.argsort(order, axis=1)[:, None], axis=2)


def _upper(moments: Array) -> Array:
    """Moments -> V, upper triangular, with V V^T = the damped moments."""
    size = moments.shape[1]
    mean = np.trace(moments, axis1=1, axis2=2) / size
    damping = np.where(mean > 0, _DAMPING * mean, 1.0)  # a group whose inputs are all zero
    damped = moments + damping[:, None, None] * np.eye(size)
    # With the columns reversed, a lower factor is an upper one.
    return np.asarray(np.linalg.cholesky(damped[:, ::-1, ::-1])[:, ::-1, ::-1])


def _of_outputs(error: Array, moments: Array) -> Array:
    """Error [groups, outputs, inputs] -> the squared error of every output."""
    error = error.astype(np.float64)
    return np.asarray(np.einsum("goi,goi->go", error @ moments, error))


def _nearest(weight: Array, params: QParams) -> Array:
    return dequantize(quantize(weight, params), params)


def _times(params: QParams, exponents: Array, allowed: Allowed) -> QParams:
    """The qparams with every scale multiplied by a power of two, as far as that is allowed."""
    factors = np.exp2(exponents).astype(np.float32)
    scale = np.maximum(params.scale * factors, SMALLEST_SCALE)
    tried = allowed(QParams(params.encoding, scale, params.zero_point, params.axis))
    return QParams(params.encoding, np.where(factors == 1, params.scale, tried.scale), params.zero_point, params.axis)


def _columns_by_scale(shape: tuple[int, ...], params: QParams, layout: Layout) -> list[tuple[Array, Array]] | None:
    """The columns in which every output has one scale, and the numbers of these scales [groups, outputs].

    None if the columns of a scale differ between outputs.
    """
    numbers = np.arange(params.scale.size, dtype=np.int32).reshape(params.scale.shape)
    view, _, spread_numbers = spread(shape, replace(params, zero_point=numbers))
    matrices = layout.matrices(np.broadcast_to(spread_numbers, view).reshape(shape))
    sets = []
    first = matrices[0, 0]
    for number in dict.fromkeys(first.tolist()):
        indices = np.flatnonzero(first == number)
        ids = matrices[..., indices[0]]
        if not (matrices[..., indices] == ids[..., None]).all():
            return None
        sets.append((indices, ids))
    return sets
