"""Rewrite linear layers as Gemm, the only form in which backends accept an int32 bias with quantized inputs.

``MatMul(x, W) + b`` with x of rank above 2 becomes ``Reshape, Gemm, Reshape``. A bias in a separate Add is rejected or
run in float: ONNX Runtime 1.31.1 fails at load ("Scale and Zero-point must be a scalar"), HTP rejects it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.model.edit import (
    add_initializer,
    constant_of,
    insert,
    is_op,
    remove_dead,
    replace_value,
    shape_of,
    sole_consumer,
)
from dovetail.model.origin import nodes_of
from dovetail.pass_record import PassRecord, Site


def linear_to_gemm(model: ir.Model) -> PassRecord:
    """Rewrite every ``MatMul(x, constant) + bias`` in which the Add is the only consumer of the MatMul."""
    graph = model.graph
    changed: list[Site] = []
    declined: list[Site] = []
    flattened: dict[ir.Value, ir.Value] = {}
    for matmul in list(graph):
        if not is_op(matmul, "MatMul") or constant_of(matmul.inputs[1]) is None:
            continue
        where = ", ".join(nodes_of(matmul)) or matmul.name or ""
        add = sole_consumer(matmul.outputs[0])
        reason = _obstacle(matmul, add)
        if reason or add is None:
            declined.append(Site(where, reason or "its output has several consumers"))
            continue
        _rewrite(graph, matmul, add, flattened)
        changed.append(Site(where, "MatMul and Add rewritten as one Gemm"))
    return PassRecord("linear_to_gemm", tuple(changed), tuple(declined))


def _obstacle(matmul: ir.Node, add: ir.Node | None) -> str:
    """Why this MatMul cannot become a Gemm; empty if it can."""
    source, weight = matmul.inputs
    if add is None or not is_op(add, "Add"):
        return "a bias Add is not its only consumer"
    shape, weight_shape = shape_of(source), shape_of(weight)
    if shape is None or weight_shape is None or len(weight_shape) != 2 or len(shape) < 2:
        return "its weight is not a matrix, or the shape of its input is unknown"
    bias = _bias(matmul, add)
    if bias is None or constant_of(bias) is None or shape_of(bias) != weight_shape[1:]:
        return "the added operand is not one constant per output channel"
    return ""


def _bias(matmul: ir.Node, add: ir.Node) -> ir.Value | None:
    return next((v for v in add.inputs if v is not matmul.outputs[0]), None)


def _rewrite(graph: ir.Graph, matmul: ir.Node, add: ir.Node, flattened: dict[ir.Value, ir.Value]) -> None:
    source, weight = matmul.inputs
    output, bias = add.outputs[0], _bias(matmul, add)
    shape, channels = shape_of(source), shape_of(weight)
    if source is None or shape is None or channels is None:
        return
    rows = int(np.prod(shape[:-1]))
    if len(shape) > 2:
        if source not in flattened:
            flattened[source] = _reshape(graph, matmul, source, (rows, shape[-1]), source, "flat")
        source = flattened[source]
    new = insert(add, "Gemm", [source, weight, bias], source=output, replaces=[matmul, add], shape=(rows, channels[1]))
    if len(shape) > 2:
        new = _reshape(graph, add, new, (*shape[:-1], channels[1]), output, "unflat")
    replace_value(output, new)
    remove_dead(graph, [add])


def _reshape(
    graph: ir.Graph, before: ir.Node, value: ir.Value, shape: tuple[int, ...], source: ir.Value, tag: str
) -> ir.Value:
    target = add_initializer(graph, np.asarray(shape, np.int64), name=f"{source.name}/{tag}_shape", source=source)
    name = f"{source.name}/{tag}"
    return insert(before, "Reshape", [value, target], source=source, replaces=[], shape=shape, name=name)
