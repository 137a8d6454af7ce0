"""Multiply the output of an L2 normalization by zero where its input is always zero, and by one elsewhere.

A vector of zeros stays zero in float. If a target computes it one quantization step off zero, the normalization makes a
unit vector of it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, is_op, shape_of
from dovetail.model.known_zeros import live_elements
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site
from dovetail.passes.fuse_l2_norm import norm_axis


def mask_zero_vectors(model: ir.Model) -> PassRecord:
    """Mask every normalization of vectors that are zero because of padding; the outputs do not change."""
    changed: list[Site] = []
    for node, mask in zero_vectors(model.graph).items():
        _insert_mask(model.graph, node, mask)
        where = origin_of(node.outputs[0]).name
        changed.append(Site(where, f"{int((~mask).sum())} of {mask.size} vectors are always zero"))
    return PassRecord("mask_zero_vectors", tuple(changed))


def zero_vectors(graph: ir.Graph) -> dict[ir.Node, Array]:
    """The normalizations of vectors that are always zero: False for each such vector, with size 1 along its axis."""
    axes = {node: axis for node in graph if (axis := _axis(node)) is not None}
    live = live_elements(graph) if axes else {}
    found: dict[ir.Node, Array] = {}
    for node, axis in axes.items():
        data = node.inputs[0]
        if data is not None and data in live and not _is_masked(node):
            mask: Array = np.asarray(live[data].any(axis=axis, keepdims=True))
            if not mask.all():
                found[node] = mask
    return found


def _axis(node: ir.Node) -> int | None:
    """The axis along which a node divides a tensor by its norm; None if it does not."""
    return int(attribute(node, "axis", -1)) if is_op(node, "LpNormalization") else norm_axis(node)


def _is_masked(node: ir.Node) -> bool:
    """Whether the output is only used by Muls with zeros at these vectors, as this pass writes them."""
    consumers = node.outputs[0].consumers()
    return bool(consumers) and all(is_op(consumer, "Mul") and _has_zeros(consumer) for consumer in consumers)


def _has_zeros(node: ir.Node) -> bool:
    constants = [edit.constant_of(value) for value in node.inputs]
    return any(constant is not None and not constant.all() for constant in constants)


def _insert_mask(graph: ir.Graph, node: ir.Node, mask: Array) -> None:
    output, shape = node.outputs[0], shape_of(node.outputs[0])
    factor = edit.add_initializer(graph, mask.astype(np.float32), name=f"{output.name}/mask", source=output)
    inputs, attributes = list(node.inputs), dict(node.attributes)
    normalized = edit.insert(
        node, node.op_type, inputs, attributes=attributes, source=output, replaces=[node], shape=shape
    )
    masked = edit.insert(node, "Mul", [normalized, factor], source=output, replaces=[node], shape=shape)
    edit.replace_value(output, masked)
    edit.remove_dead(graph, [node])
