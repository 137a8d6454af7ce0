"""Fuse decomposed layer normalization into LayerNormalization, and canonicalize every LayerNormalization."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, reduced_axes, scalar_of, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


@dataclass(frozen=True, slots=True, eq=False)
class _DecomposedNorm:
    """A decomposed normalization, (data - mean) / sqrt(variance + epsilon) over ``axes``; ``last`` is its last node."""

    data: ir.Value
    axes: tuple[int, ...]
    epsilon: float
    last: ir.Node


def fuse_layer_norm(model: ir.Model) -> PassRecord:
    """Replace mean, variance, square root and division, and the scale and bias after them, by one LayerNormalization.

    The canonical form has a negative axis, an explicit epsilon, and a scale and a bias of exactly the normalized shape
    (ones and zeros where there were none). Normalization over other axes than the last (the channels of an image) is
    surrounded by Transposes. Intermediate tensors with other consumers stay.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in model.graph:
        if is_op(node, "LayerNormalization"):
            change = _complete(model.graph, node)
            changed += [Site(origin_of(node.outputs[0]).name, change)] if change else []
            continue
        norm = _match(node)
        if norm is None:
            continue
        where = origin_of(node.outputs[0]).name
        shape = shape_of(norm.data)
        if shape is None:
            declined.append(Site(where, "the shape of the layer normalization's input is unknown"))
        else:
            order = (*(axis for axis in range(len(shape)) if axis not in norm.axes), *norm.axes)
            _fuse(model.graph, norm, order, tuple(shape[axis] for axis in norm.axes))
            moved = "" if order == tuple(range(len(shape))) else f", axes {list(norm.axes)} transposed to the end"
            changed.append(Site(where, f"layer normalization fused{moved}"))
    return PassRecord("fuse_layer_norm", tuple(changed), tuple(declined))


def _match(node: ir.Node) -> _DecomposedNorm | None:
    """The normalization that ends with this node, its division."""
    for centered, root in _centered_and_root(node):
        variance_plus_epsilon = root.producer()
        if variance_plus_epsilon is None or not is_op(variance_plus_epsilon, "Add"):
            continue
        variance, epsilon = variance_plus_epsilon.inputs[0], scalar_of(variance_plus_epsilon.inputs[1])
        if epsilon is None:
            variance, epsilon = variance_plus_epsilon.inputs[1], scalar_of(variance_plus_epsilon.inputs[0])
        if epsilon is None or variance is None:
            continue
        data_axes = _data_and_axes(centered)
        squared, axes = _mean_of(variance)
        if data_axes is None or squared is None or axes != data_axes[1]:
            continue
        if _data_and_axes(_base_of_square(squared)) == data_axes:
            return _DecomposedNorm(data_axes[0], data_axes[1], epsilon, node)
    return None


def _centered_and_root(node: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    """The ways to read a node as ``a / sqrt(b)``, each as (a, b)."""
    if not is_op(node, "Div", "Mul") or node.inputs[0] is None or node.inputs[1] is None:
        return []
    left, right = node.inputs[0], node.inputs[1]
    if node.op_type == "Div":
        candidates = [(left, _root(_without_cast(right), 0.5))]
    else:
        candidates = [(left, _inverse_root(_without_cast(right))), (right, _inverse_root(_without_cast(left)))]
    return [(centered, root) for centered, root in candidates if root is not None]


def _root(value: ir.Value | None, power: float) -> ir.Value | None:
    """The ``b`` of a value that is b raised to this power; None for any other value."""
    node = value.producer() if value is not None else None
    if is_op(node, "Pow") and node is not None and scalar_of(node.inputs[1]) == power:
        return node.inputs[0]
    return node.inputs[0] if power == 0.5 and is_op(node, "Sqrt") and node is not None else None


def _inverse_root(value: ir.Value | None) -> ir.Value | None:
    node = value.producer() if value is not None else None
    if is_op(node, "Reciprocal") and node is not None:
        return _root(node.inputs[0], 0.5)
    if is_op(node, "Div") and node is not None and scalar_of(node.inputs[0]) == 1:
        return _root(node.inputs[1], 0.5)
    return _root(value, -0.5)


def _data_and_axes(centered: ir.Value | None) -> tuple[ir.Value, tuple[int, ...]] | None:
    """The ``x`` and the axes of a value that is x - mean(x); None for any other value."""
    node = centered.producer() if centered is not None else None
    if node is None or not is_op(node, "Sub") or node.inputs[0] is None:
        return None
    data, axes = _mean_of(node.inputs[1])
    return (data, axes) if data is node.inputs[0] and axes else None


def _mean_of(value: ir.Value | None) -> tuple[ir.Value | None, tuple[int, ...]]:
    """The tensor that a value is the mean of, and the axes of the mean, non-negative and sorted."""
    node = value.producer() if value is not None else None
    if node is None or not is_op(node, "ReduceMean") or not attribute(node, "keepdims", 1) or node.inputs[0] is None:
        return None, ()
    axes = reduced_axes(node)
    return (None, ()) if axes is None else (node.inputs[0], axes)


def _base_of_square(value: ir.Value) -> ir.Value | None:
    node = value.producer()
    if node is None or not is_op(node, "Pow", "Mul"):
        return None
    left, right = node.inputs
    square = left is right if node.op_type == "Mul" else scalar_of(right) == 2
    return _without_cast(left) if square else None


def _without_cast(value: ir.Value | None) -> ir.Value | None:
    """The value before a Cast of its float type; the fused operator computes in float32 throughout."""
    node = value.producer() if value is not None else None
    return node.inputs[0] if node is not None and is_op(node, "Cast") else value


def _fuse(graph: ir.Graph, norm: _DecomposedNorm, order: tuple[int, ...], normalized: tuple[int, ...]) -> None:
    data, last = _between_casts(norm)
    nodes = [norm.last] if last is norm.last else [norm.last, last]
    scale, last = _affine(last, "Mul", order, normalized)
    if scale is not None:
        nodes.append(last)
    bias, end = _affine(last, "Add", order, normalized)
    if bias is not None:
        nodes.append(end)
    output, shape = end.outputs[0], shape_of(end.outputs[0])
    needs_transpose = order != tuple(range(len(order)))
    if needs_transpose:
        data = insert_step(end, data, Step("Transpose", order), replaces=nodes)
        shape = shape_of(data)
    new = edit.insert(
        end,
        "LayerNormalization",
        [data, _filled(graph, output, scale, normalized, 1.0), _filled(graph, output, bias, normalized, 0.0)],
        attributes={"axis": -len(normalized), "epsilon": norm.epsilon},
        source=output,
        replaces=nodes,
        shape=shape,
    )
    if needs_transpose:
        back = tuple(order.index(axis) for axis in range(len(order)))
        new = insert_step(end, new, Step("Transpose", back), replaces=nodes)
    edit.replace_value(output, new)
    edit.remove_dead(graph, [end])


def _between_casts(norm: _DecomposedNorm) -> tuple[ir.Value, ir.Node]:
    """The input before and the Cast after, if Casts to float32 and back surround it: the operator needs no Casts."""
    before, after = norm.data.producer(), edit.sole_consumer(norm.last.outputs[0])
    if before is None or after is None or not is_op(before, "Cast") or not is_op(after, "Cast"):
        return norm.data, norm.last
    narrow = before.inputs[0]
    widened = norm.data.dtype == ir.DataType.FLOAT
    if narrow is None or not widened or narrow.dtype != after.outputs[0].dtype or not edit.is_float(narrow):
        return norm.data, norm.last
    return narrow, after


@dataclass(frozen=True, slots=True, eq=False)
class _AffineConstant:
    """The scale or bias of a normalization, and its array with the axes in the order of the normalized tensor."""

    value: ir.Value
    array: Array


def _affine(
    node: ir.Node, op_type: str, order: tuple[int, ...], normalized: tuple[int, ...]
) -> tuple[_AffineConstant | None, ir.Node]:
    """The constant that the only consumer of a node multiplies or adds, and that consumer; else None and the node."""
    consumer = edit.sole_consumer(node.outputs[0])
    if consumer is None or not is_op(consumer, op_type):
        return None, node
    constant = consumer.inputs[1] if consumer.inputs[0] is node.outputs[0] else consumer.inputs[0]
    array = constant_of(constant)
    if constant is None or array is None or shape_of(consumer.outputs[0]) != shape_of(node.outputs[0]):
        return None, node
    if order != tuple(range(len(order))):
        array = array.reshape((1,) * (len(order) - array.ndim) + array.shape).transpose(order)
    return (_AffineConstant(constant, array), consumer) if _fits(array, normalized) else (None, node)


def _fits(array: Array, normalized: tuple[int, ...]) -> bool:
    """Whether a constant varies over the normalized axes only."""
    leading = max(array.ndim - len(normalized), 0)
    trailing = array.shape[leading:]
    sizes = normalized[len(normalized) - len(trailing) :]
    return all(size == 1 for size in array.shape[:leading]) and all(
        have in (1, size) for have, size in zip(trailing, sizes, strict=True)
    )


def _filled(
    graph: ir.Graph, output: ir.Value, constant: _AffineConstant | None, normalized: tuple[int, ...], default: float
) -> ir.Value:
    """The constant in exactly the normalized shape."""
    if constant is None:
        dtype = np.float32 if output.dtype is None else output.dtype.numpy()
        name = f"{output.name}/{'scale' if default else 'bias'}"
        return edit.add_initializer(graph, np.full(normalized, default, dtype=dtype), name=name, source=output)
    value, array = constant.value, constant.array
    if shape_of(value) == normalized and array.shape == normalized:
        return value
    leading = max(array.ndim - len(normalized), 0)
    shaped = np.broadcast_to(array.reshape(array.shape[leading:]), normalized)
    return edit.add_initializer(graph, shaped, name=f"{value.name}/normalized", source=value)


def _complete(graph: ir.Graph, node: ir.Node) -> str:
    """Bring an exported LayerNormalization to the canonical form, in place; returns what was changed."""
    shape = shape_of(node.inputs[0])
    axis = attribute(node, "axis", -1)
    if shape is None:
        return ""
    changes: list[str] = []
    if axis >= 0 or "axis" not in node.attributes or "epsilon" not in node.attributes:
        epsilon = attribute(node, "epsilon", 1e-5)
        node.attributes["axis"] = ir.AttrInt64("axis", axis if axis < 0 else axis - len(shape))
        node.attributes["epsilon"] = ir.AttrFloat32("epsilon", epsilon)
        changes.append("attributes made explicit")
    if attribute(node, "stash_type", None) == 1:
        del node.attributes["stash_type"]
    normalized = shape[edit.attribute(node, "axis", -1) :]
    if len(node.inputs) < 3 or node.inputs[2] is None:
        node.resize_inputs(3)
        node.replace_input_with(2, _filled(graph, node.outputs[0], None, normalized, 0.0))
        changes.append("bias of zeros added")
    return ", ".join(changes)
