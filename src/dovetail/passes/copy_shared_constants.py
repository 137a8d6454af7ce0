"""Give every reader that may need its own storage its own constant."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from dovetail.model import edit, origin
from dovetail.pass_record import PassRecord, Site

# A weight is stored to suit the one layer that it is in: rounding and equalisation look at that layer's inputs.
_LAYERS = ("MatMul", "Conv", "ConvTranspose", "Gemm")


def copy_shared_constants(model: ir.Model) -> PassRecord:
    """Copy float constants of more than one element that readers of different kinds share.

    Readers are of one kind when they have the same operator and read the constant at the same place (a mask that
    twelve layers add stays one tensor), except that every linear layer and convolution is a kind of its own.
    Scalars, and integers, which are shapes and indices, stay shared.
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
            changed.append(Site(origin.origin_of(value).name, f"copied for {len(kinds)} kinds of readers"))
    return PassRecord("copy_shared_constants", tuple(changed))


def _kind(node: ir.Node, index: int) -> Hashable:
    return (node.name, index) if edit.is_op(node, *_LAYERS) else (node.domain, node.op_type, index)
