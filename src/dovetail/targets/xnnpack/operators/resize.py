"""Mapping of Resize: whatever its mode, it multiplies every axis by a constant matrix.

The matrix of an axis is what ONNX Runtime computes for the identity, so every mode, coordinate transformation, rounding
and scale samples as it does there. XNNPACK (executorch 1.5.1) has one such operator, bilinear with half_pixel or
align_corners, which does asymmetric too if the last element of an axis is repeated; repeated elements are a
multiplication by ones; all others are linear layers with that matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model.evaluate import EvaluationError, evaluate
from dovetail.targets.xnnpack.operators.layout import cut
from dovetail.targets.xnnpack.operators.registry import MOST_AXES, Call, Function, Tensor, operator, torch
from dovetail.targets.xnnpack.operators.repeat import repeating

_OPSET = 19
_SPATIAL_AXES = (2, 3)
# Attributes that ONNX Runtime gets as they are: they do not refer to other axes.
_ATTRIBUTES = (
    "antialias",
    "coordinate_transformation_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "mode",
    "nearest_mode",
)
# Torch and ONNX Runtime compute weights from coordinates in float32: per element of an axis they may differ by this.
_ROUNDING = 4 * float(np.finfo(np.float32).eps)

Weights = Mapping[int, Array]


@operator("Resize", constants=(1, 2, 3))
def resize(call: Call) -> Function:
    """Repeat elements, or resize bilinearly as XNNPACK does, or multiply every axis by its matrix."""
    weights = _weights(call)
    if not call.is_float() or len(call.shape()) > MOST_AXES:
        return _equal_to(call, weights, (_NEAREST,)) or _selected(call, weights)
    repeat = _repeated(call, weights)
    if repeat is not None:
        return lambda x, *_: repeat(x)
    return _equal_to(call, weights, _DELEGATED) or _multiplied(weights)


def native_resize(call: Call) -> Function:
    """The torch function that a model's author uses, where torch samples like this node; nearest is not delegated."""
    samplers = (_NEAREST, _HALF_PIXEL, _ALIGNED, partial(_interpolate, mode="bicubic", align_corners=False))
    function: Function = _equal_to(call, _weights(call), samplers if call.is_float() else (_NEAREST,)) or resize(call)
    return function


def _weights(call: Call) -> Weights:
    """The matrix [outputs, inputs] of every axis that the node changes."""
    if str(call.attribute("keep_aspect_ratio_policy", "stretch")) != "stretch":
        raise call.unsupported("keep_aspect_ratio_policy is not supported; give it the output sizes instead")
    if str(call.attribute("coordinate_transformation_mode", "")) == "tf_crop_and_resize":
        raise call.unsupported("tf_crop_and_resize is not supported; crop with Slice, then resize")
    sizes = enumerate(zip(call.shape(), call.output_shape(), strict=True))
    resized = [axis for axis, (before, after) in sizes if before != after or _scale(call, axis) not in (None, 1.0)]
    matrices = {axis: _matrix(call, axis) for axis in resized}
    return {axis: matrix for axis, matrix in matrices.items() if not _is_identity(matrix)}


def _matrix(call: Call, axis: int) -> Array:
    """What the node computes along one axis, for the identity."""
    before, after, scale = call.shape()[axis], call.output_shape()[axis], _scale(call, axis)
    values: dict[str, Array] = {"x": np.eye(before, dtype=np.float32).reshape(1, before, 1, before)}
    if scale is None:
        values["sizes"] = np.array([1, before, 1, after], np.int64)
    else:
        values["scales"] = np.array([1, 1, 1, scale], np.float32)
    given = {name: _value(name, array) for name, array in values.items()}
    inputs = [given.get(name) for name in ("x", "roi", "scales", "sizes")]
    attributes = {name: value for name in _ATTRIBUTES if (value := call.attribute(name, None)) is not None}
    node = ir.node("Resize", inputs, attributes, outputs=[ir.Value(name="y")])
    try:
        (result,) = evaluate(node, values, {"": _OPSET})
    except EvaluationError as error:
        raise call.unsupported(f"its sampling along axis {axis} is unknown: {error}") from error
    if result.shape != (1, before, 1, after):
        raise call.unsupported(f"its scale {scale} makes {result.shape[-1]} of {before} elements, not {after}")
    return np.ascontiguousarray(result.reshape(before, after).T)


def _value(name: str, array: Array) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)))


def _scale(call: Call, axis: int) -> float | None:
    """The scale of an axis; None if the node has sizes instead."""
    scales, axes, rank = call.constant(2), call.attribute("axes", None), len(call.shape())
    if scales is None or not scales.size:
        return None
    along = range(rank) if axes is None else [int(number) % rank for number in axes]
    by_axis: dict[int, float] = dict(zip(along, scales.tolist(), strict=True))
    return by_axis.get(axis, 1.0)


def _is_identity(matrix: Array) -> bool:
    return matrix.shape[0] == matrix.shape[1] and _is_close(matrix, np.eye(len(matrix), dtype=np.float32))


def _is_close(matrix: Array, other: Array) -> bool:
    return bool(np.allclose(matrix, other, rtol=0, atol=_ROUNDING * max(matrix.shape)))


def _interpolate(x: Tensor, size: Sequence[int], *, mode: str, align_corners: bool | None = None) -> Tensor:
    return torch.nn.functional.interpolate(x, list(size), mode=mode, align_corners=align_corners)


def _asymmetric(x: Tensor, size: Sequence[int]) -> Tensor:
    """Bilinear at o in / out: with one more element on both sides, the corners that are aligned are in and out."""
    for axis in _SPATIAL_AXES:
        x = torch.cat([x, cut(x, axis, x.shape[axis] - 1, x.shape[axis])], axis)
    x = _ALIGNED(x, [after + 1 for after in size])
    for axis, after in zip(_SPATIAL_AXES, size, strict=True):
        x = cut(x, axis, 0, after)
    return x


_NEAREST = partial(_interpolate, mode="nearest")
_HALF_PIXEL = partial(_interpolate, mode="bilinear", align_corners=False)
_ALIGNED = partial(_interpolate, mode="bilinear", align_corners=True)
_DELEGATED: tuple[Function, ...] = (_HALF_PIXEL, _ALIGNED, _asymmetric)


def _equal_to(call: Call, weights: Weights, samplers: Sequence[Function]) -> Function | None:
    """The first of these functions of an image and a size that has the matrices of the node."""
    if len(call.shape()) != 4 or not set(weights) <= set(_SPATIAL_AXES):
        return None
    size = call.output_shape()[2:]
    for sampler in samplers:
        if all(_samples(sampler, matrix) for matrix in weights.values()):
            return lambda x, *_: sampler(x, size)
    return None


def _samples(sampler: Function, matrix: Array) -> bool:
    """Whether a function multiplies an axis by this matrix."""
    after, before = matrix.shape
    sampled = sampler(torch.eye(before).reshape(1, before, 1, before), [1, after])
    return _is_close(matrix, sampled.reshape(before, after).numpy().T)


def _repeated(call: Call, weights: Weights) -> Function | None:
    """A function that repeats every element of an axis the same number of times; None if the node does not do that."""
    times = [1] * len(call.shape())
    for axis, matrix in weights.items():
        times[axis] = max(1, matrix.shape[0] // matrix.shape[1])
        if not np.array_equal(matrix, np.repeat(np.eye(matrix.shape[1], dtype=np.float32), times[axis], axis=0)):
            return None
    return repeating(call.shape(), [1] * len(times), times)


def _selected(call: Call, weights: Weights) -> Function:
    """Select elements of any type by index, outside the delegate."""
    if any(not np.isin(matrix, (0.0, 1.0)).all() for matrix in weights.values()):
        raise call.unsupported("only nearest can resize integers; cast its input to float")
    indices = {axis: torch.from_numpy(matrix.argmax(1)) for axis, matrix in weights.items()}

    def select(x: Tensor, *_: Tensor) -> Tensor:
        for axis, selected in indices.items():
            x = torch.index_select(x, axis, selected)
        return x if indices else x.clone()

    return select


def _multiplied(weights: Weights) -> Function:
    """Multiply the last axis, and every other one moved there, by its matrix; those that shrink most come first."""
    order = sorted(weights, key=lambda axis: weights[axis].shape[0] / weights[axis].shape[1])
    matrices = {axis: torch.from_numpy(np.array(weights[axis])) for axis in order}

    def multiply(x: Tensor, *_: Tensor) -> Tensor:
        for axis, matrix in matrices.items():
            is_last = axis == x.dim() - 1
            moved = x if is_last else x.transpose(axis, -1)
            product = torch.nn.functional.linear(moved, matrix)
            x = product if is_last else product.transpose(axis, -1)
        return x if matrices else x.clone()

    return multiply
