"""Fold BatchNormalization, and constant per-channel factors and offsets, into the convolution before them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

# y = x * scale + shift, one value per channel, in float64
Affine = tuple[Array, Array]


def fold_batch_norm(model: ir.Model) -> PassRecord:
    """Fold per-channel operations after a convolution into its weight and bias.

    A BatchNormalization that does not follow a convolution, or follows one whose output has other consumers, becomes
    Mul and Add.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in model.graph:
        affine = _affine(node)
        if affine is None:
            if edit.is_op(node, "BatchNormalization"):
                declined.append(
                    Site(origin_of(node.outputs[0]).name, "its parameters are not constant, or it is in training mode")
                )
            continue
        where = origin_of(node.outputs[0]).name
        convolution = _producer(node)
        reason = _why_not(convolution, node)
        if convolution is not None and reason is None:
            _fold(model.graph, convolution, node, affine)
            changed.append(Site(where, f"{node.op_type} folded into the {convolution.op_type}"))
        elif edit.is_op(node, "BatchNormalization"):
            _expand(model.graph, node, affine)
            changed.append(Site(where, f"BatchNormalization rewritten as Mul and Add: {reason}"))
    return PassRecord("fold_batch_norm", tuple(changed), tuple(declined))


def _affine(node: ir.Node) -> Affine | None:
    """The factor and offset per channel that a node applies, or None for any other node."""
    if edit.is_op(node, "BatchNormalization"):
        return _batch_norm(node)
    if not edit.is_op(node, "Mul", "Add", "Sub", "Div"):
        return None
    constant, shape = _per_channel(node), shape_of(node.outputs[0])
    if constant is None or shape is None:
        return None
    ones, zeros = np.ones(shape[1]), np.zeros(shape[1])
    if node.op_type in ("Mul", "Div"):
        return (ones * constant if node.op_type == "Mul" else ones / constant), zeros
    return ones, (zeros + constant if node.op_type == "Add" else zeros - constant)


def _batch_norm(node: ir.Node) -> Affine | None:
    arrays = [constant_of(value) for value in node.inputs[1:5]]
    scale, bias, mean, variance = (None if array is None else array.astype(np.float64) for array in arrays)
    if scale is None or bias is None or mean is None or variance is None or attribute(node, "training_mode", 0):
        return None
    factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    return factor, bias - mean * factor


def _per_channel(node: ir.Node) -> Array | None:
    """The second operand, flat, if it is a scalar or has one value per channel (axis 1) of the first."""
    array, shape = constant_of(node.inputs[1]), shape_of(node.inputs[0])
    if array is None or array.dtype.kind != "f" or shape is None or len(shape) < 3 or array.ndim > len(shape):
        return None
    padded = (1,) * (len(shape) - array.ndim) + array.shape
    if array.size == 1 or padded == (1, shape[1], *(1,) * (len(shape) - 2)):
        return array.reshape(-1).astype(np.float64)
    return None


def _producer(node: ir.Node) -> ir.Node | None:
    return node.inputs[0].producer() if node.inputs[0] is not None else None


def _why_not(convolution: ir.Node | None, node: ir.Node) -> str | None:
    if convolution is None or not edit.is_op(convolution, "Conv", "ConvTranspose"):
        return "it does not follow a convolution"
    if edit.sole_consumer(convolution.outputs[0]) is not node:
        return "the output of the convolution has other consumers"
    if any(constant_of(value) is None for value in convolution.inputs[1:] if value is not None):
        return "the weight or bias of the convolution is not constant"
    return None


def _fold(graph: ir.Graph, convolution: ir.Node, node: ir.Node, affine: Affine) -> None:
    scale, shift = affine
    data, weight, *rest = convolution.inputs
    old_bias = rest[0] if rest else None
    array, bias = constant_of(weight), constant_of(old_bias)
    if weight is None or array is None:
        raise TypeError(f"the weight of {convolution.name!r} is not constant")
    if not np.all(scale == 1):
        scaled = _scaled(array, scale, convolution)
        weight = edit.add_initializer(graph, scaled, name=f"{weight.name}/scaled", source=weight)
    folded = (0.0 if bias is None else bias.astype(np.float64)) * scale + shift
    name = f"{convolution.outputs[0].name}/bias" if old_bias is None else f"{old_bias.name}/folded"
    source = convolution.outputs[0] if old_bias is None else old_bias
    new_bias = edit.add_initializer(graph, folded.astype(array.dtype), name=name, source=source)
    output = node.outputs[0]
    new = edit.insert(
        node,
        convolution.op_type,
        [data, weight, new_bias],
        attributes=dict(convolution.attributes),
        source=output,
        replaces=[convolution, node],
        shape=shape_of(output),
    )
    edit.replace_value(output, new)
    edit.remove_dead(graph, [node])


def _scaled(weight: Array, scale: Array, convolution: ir.Node) -> Array:
    """The weight times one factor per output channel: [M,C/g,...] of a Conv, [C,M/g,...] of a ConvTranspose."""
    wide = weight.astype(np.float64)
    if convolution.op_type == "Conv":
        result = wide * scale.reshape(-1, *(1,) * (weight.ndim - 1))
    else:
        groups = attribute(convolution, "group", 1)
        split = wide.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        result = (split * scale.reshape(groups, 1, -1, *(1,) * (weight.ndim - 2))).reshape(weight.shape)
    return np.asarray(result, dtype=weight.dtype)


def _expand(graph: ir.Graph, node: ir.Node, affine: Affine) -> None:
    """Rewrite a BatchNormalization that cannot be folded as Mul and Add of [C,1,...] constants."""
    output, value = node.outputs[0], node.inputs[0]
    rank = len(value.shape) if value is not None and value.shape is not None else 2
    dtype = np.float32 if output.dtype is None else output.dtype.numpy()
    for op_type, array, source in (("Mul", affine[0], node.inputs[1]), ("Add", affine[1], node.inputs[2])):
        shaped = array.reshape(-1, *(1,) * max(rank - 2, 0)).astype(dtype)
        constant = edit.add_initializer(
            graph, shaped, name=f"{output.name}/{op_type.lower()}", source=output if source is None else source
        )
        value = edit.insert(node, op_type, [value, constant], source=output, replaces=[node], shape=shape_of(output))
    if value is not None:
        edit.replace_value(output, value)
    edit.remove_dead(graph, [node])
