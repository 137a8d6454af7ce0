"""Rewrite ReduceSum over the last axis as MatMul with ones, which HTP runs in half the time.

The vendor's estimates on SoC 52 for the weighted sum of deformable attention ([8, 32, 300, 12], then its layout): in 8
bit 843 us with ReduceSum and 382 us with MatMul, in 16 bit 737 and 471. A small RT-DETRv2 in 8 bit: 1560 and 622.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def reduce_sum_to_matmul(model: ir.Model) -> PassRecord:
    """Replace every float ReduceSum over the last axis of a tensor of rank 2 or more."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "ReduceSum") or not edit.is_float(node.outputs[0]):
            continue
        where, shape = origin_of(node.outputs[0]).name, shape_of(node.inputs[0])
        if shape is None or len(shape) < 2 or not _over_last(node, len(shape)):
            declined.append(Site(where, "it sums over other axes than the last, or its shape is unknown"))
            continue
        _rewrite(model.graph, node, shape)
        changed.append(Site(where, f"ReduceSum of {shape[-1]} elements rewritten as MatMul with ones"))
    return PassRecord("reduce_sum_to_matmul", tuple(changed), tuple(declined))


def _over_last(node: ir.Node, rank: int) -> bool:
    axes = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    return axes is not None and [int(axis) % rank for axis in axes.ravel()] == [rank - 1]


def _rewrite(graph: ir.Graph, node: ir.Node, shape: tuple[int, ...]) -> None:
    data, output = node.inputs[0], node.outputs[0]
    if data is None:
        raise TypeError(f"node {node.name!r} has no input")
    dtype = np.dtype(output.dtype.numpy()) if output.dtype is not None else np.dtype(np.float32)
    ones = edit.add_initializer(graph, np.ones((shape[-1], 1), dtype), name=f"{output.name}/ones", source=output)
    rows = math.prod(shape[:-1])
    flat = data if len(shape) == 2 else insert_step(node, data, Step("Reshape", (rows, shape[-1])), replaces=[])
    new = edit.insert(node, "MatMul", [flat, ones], source=output, replaces=[node], shape=(rows, 1))
    final = (*shape[:-1], 1) if attribute(node, "keepdims", 1) else shape[:-1]
    if final != (rows, 1):
        new = insert_step(node, new, Step("Reshape", final), replaces=[])
    edit.replace_value(output, new)
    edit.remove_dead(graph, [node])
