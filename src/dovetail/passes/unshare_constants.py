"""Give consumers that may need different quantization parameters their own copy of a constant."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from dovetail.model import edit, origin
from dovetail.pass_record import PassRecord, Site

# A weight is quantized for the one layer that uses it: rounding and equalization depend on that layer's inputs.
_LAYERS = ("MatMul", "Conv", "ConvTranspose", "Gemm")


def unshare_constants(model: ir.Model) -> PassRecord:
    """Copy float constants of more than one element that consumers of different kinds share.

    Consumers are of one kind if they have the same operator and use the constant as the same input (a mask that twelve
    layers add stays one tensor), except that every MatMul, Gemm and Conv is a kind of its own. Scalars stay shared, and
    so do integers, which are shapes and indices.
    """
    changed: list[Site] = []
    for value in list(model.graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or tensor.size < 2 or not edit.is_float(value):
            continue
        kinds: dict[Hashable, list[tuple[ir.Node, int]]] = {}
        for node, index in value.uses():
            kinds.setdefault(_kind(node, index), []).append((node, index))
        for uses in list(kinds.values())[1:]:
            copy = edit.add_initializer(model.graph, tensor.numpy(), name=f"{value.name}/copy", source=value)
            origin.carry(copy, value)
            for node, index in uses:
                node.replace_input_with(index, copy)
        if len(kinds) > 1:
            changed.append(Site(origin.origin_of(value).name, f"copied for {len(kinds)} kinds of consumers"))
    return PassRecord("unshare_constants", tuple(changed))


def _kind(node: ir.Node, index: int) -> Hashable:
    return (node.name, index) if edit.is_op(node, *_LAYERS) else (node.domain, node.op_type, index)
