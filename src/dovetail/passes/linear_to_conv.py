"""Write linear layers with block-quantized weights as convolutions of 1 x 1 over [1, channels, 1, rows].

HTP has no Gemm with such weights. It lowers a MatMul to the same convolution, but its bias is then a separate Add: a
DINOv2-S block on SoC 52 is estimated to take 2296 us with MatMul and Add, 2031 us with convolutions (16-bit second
operands of attention); over [1, channels, rows, 1] it takes 5255 us. The Transposes are not run: HTP
computes convolutions channels-last. The other rewrites are made for Gemm, so this is the last one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model.edit import (
    add_initializer,
    attribute,
    constant_of,
    insert,
    is_op,
    remove_dead,
    replace_value,
    shape_of,
)
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

_TO_CHANNELS_FIRST, _TO_CHANNELS_LAST = [0, 3, 1, 2], [0, 2, 3, 1]


def linear_to_conv(model: ir.Model, block_sizes: Mapping[str, int]) -> PassRecord:
    """Rewrite the Gemm and MatMul with these names whose constant weight can be divided into blocks of this size along
    its input channels."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Gemm", "MatMul") or (weight := constant_of(node.inputs[1])) is None:
            continue
        if (block_size := block_sizes.get(node.name or "")) is None:
            continue
        where = origin_of(node.outputs[0]).name
        if reason := _obstacle(node, weight, block_size):
            declined.append(Site(where, reason))
        else:
            _rewrite(model.graph, node, weight)
            changed.append(Site(where, f"{node.op_type} rewritten as a convolution, for a block-quantized weight"))
    return PassRecord("linear_to_conv", tuple(changed), tuple(declined))


def _obstacle(node: ir.Node, weight: Array, block_size: int) -> str:
    """Why a layer stays as it is; empty if it can be rewritten."""
    shape, output = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if weight.ndim != 2 or shape is None or output is None or len(shape) < 2:
        return "its weight is not a matrix, or the shape of its input is unknown"
    if any(attribute(node, name, default) != default for name, default in (("transA", 0), ("transB", 0))):
        return "it is a transposed Gemm"
    if any(attribute(node, name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return "it is a scaled Gemm"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and (constant_of(bias) is None or shape_of(bias) != weight.shape[1:]):
        return "its bias is not one constant per output channel"
    if weight.shape[0] % block_size:
        return f"its {weight.shape[0]} input channels are not a multiple of the block size {block_size}"
    return ""


def _rewrite(graph: ir.Graph, node: ir.Node, weight: Array) -> None:
    source, output = node.inputs[0], node.outputs[0]
    shape, out_shape = shape_of(source), shape_of(output)
    if source is None or shape is None or out_shape is None or node.inputs[1] is None:
        return
    inner, outer = weight.shape
    rows = math.prod(shape[:-1])
    kernel = weight.T.reshape(outer, inner, 1, 1)
    kernel_value = add_initializer(graph, kernel, name=f"{node.inputs[1].name}/conv", source=node.inputs[1])
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    value = _reshape(graph, node, source, (1, 1, rows, inner), source)
    value = _transpose(node, value, _TO_CHANNELS_FIRST, source, (1, inner, 1, rows))
    inputs = [value, kernel_value, *(() if bias is None else (bias,))]
    value = insert(node, "Conv", inputs, source=output, replaces=[node], shape=(1, outer, 1, rows))
    value = _transpose(node, value, _TO_CHANNELS_LAST, output, (1, 1, rows, outer))
    replace_value(output, _reshape(graph, node, value, out_shape, output))
    remove_dead(graph, [node])


def _transpose(before: ir.Node, value: ir.Value, perm: list[int], source: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    return insert(before, "Transpose", [value], attributes={"perm": perm}, source=source, replaces=[], shape=shape)


def _reshape(graph: ir.Graph, before: ir.Node, value: ir.Value, shape: tuple[int, ...], source: ir.Value) -> ir.Value:
    target = add_initializer(graph, np.asarray(shape, np.int64), name=f"{source.name}/rows_shape", source=source)
    return insert(before, "Reshape", [value, target], source=source, replaces=[], shape=shape)
