"""Give the block-quantized int4 weights of a QDQ model integer scales (LPBQ), in place: opt-in, it changes numbers.

The new scales are the closest multiples of one scale per channel, and the weights are rounded on that grid: what is
simulated then is what is deployed. The record has the SQNR with the scales alone changed, too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, DType, Granularity, QParams
from dovetail.model.edit import (
    add_initializer,
    attribute,
    constant_of,
    input_axis,
    insert,
    is_op,
    shape_of,
    why_weight_not_matrix,
)
from dovetail.model.origin import origin_of
from dovetail.numerics.affine import dequantize, quantize
from dovetail.numerics.lpbq import as_expanded
from dovetail.numerics.metrics import sqnr_db
from dovetail.op_support import W4_EXPANDED, OpTable
from dovetail.pass_record import PassRecord, Site
from dovetail.qdq.params import QUANTIZED_TYPES, is_dequantize, qparams_of, two_levels

_16_BIT = (DType.U16, DType.S16)
_4_BIT = (DType.U4, DType.S4)
_LINEAR = ("Conv", "Gemm", "MatMul")


def to_lpbq(model: ir.Model, table: OpTable) -> PassRecord:
    """Convert every weight that is eligible on a target; the record says why other 4-bit or blocked weights are not."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_dequantize(node) or (integers := constant_of(node.inputs[0])) is None:
            continue
        if not attribute(node, "block_size", 0) and _dtype(node) not in _4_BIT:
            continue
        where = origin_of(node.inputs[0]).name if node.inputs[0] is not None else str(node.name)
        params = qparams_of(node)
        reason = _why_not(node, params, table)
        if reason:
            declined.append(Site(where, f"not converted: {reason}"))
        else:
            changed.append(Site(where, _convert(model.graph, node, integers, params)))
    return PassRecord("to_lpbq", tuple(changed), tuple(declined))


def _dtype(node: ir.Node) -> DType | None:
    value = node.inputs[0]
    return None if value is None or value.dtype is None else QUANTIZED_TYPES.get(value.dtype)


def _why_not(node: ir.Node, params: QParams, table: OpTable) -> str:
    """Why a weight cannot have integer scales; empty if it can."""
    uses, shape = list(node.outputs[0].uses()), shape_of(node.inputs[0])
    if params.encoding.granularity is Granularity.EXPANDED_BLOCK:
        return "it has integer scales already"
    if params.encoding.granularity is not Granularity.BLOCK or params.axis is None:
        return "it has no scales per block"
    if params.dtype not in _4_BIT:
        return f"it is {params.dtype}, integer scales require 4 bits"
    if not params.encoding.symmetric:
        return "it is not symmetric: its zero points differ from the middle of the range"
    if len(uses) != 1 or uses[0][1] != 1 or not is_op(uses[0][0], *_LINEAR):
        return f"it is not the weight of one {', '.join(_LINEAR)}"
    if shape is None or shape_of(uses[0][0].inputs[0]) is None:
        return "the shapes of the operator are not known"
    return _why_not_at(uses[0][0], params, shape) or _why_not_on(table, uses[0][0], params, shape)


def _why_not_at(consumer: ir.Node, params: QParams, shape: tuple[int, ...]) -> str:
    if is_op(consumer, "MatMul") and (reason := why_weight_not_matrix(consumer)):
        return f"{reason}, it has rank {len(shape)}"
    axis, inner = (params.axis or 0) % len(shape), input_axis(consumer, len(shape))
    if axis != inner:
        return f"its blocks are along axis {axis}, not along the input channels, axis {inner}"
    if shape[inner] % params.encoding.block_size:
        return f"its {shape[inner]} input channels are not a multiple of the block size {params.encoding.block_size}"
    if is_op(consumer, "Conv") and (len(shape) != 4 or shape[2:] != (1, 1) or attribute(consumer, "group", 1) != 1):
        return "only convolutions of 1 x 1 without groups have integer scales"
    activation = consumer.inputs[0].producer() if consumer.inputs[0] is not None else None
    dtype = _activation_dtype(activation)
    if dtype not in _16_BIT:
        return f"the activation of {consumer.op_type} is {dtype or 'float'}, it must be a 16-bit integer"
    return ""


def _why_not_on(table: OpTable, consumer: ir.Node, params: QParams, shape: tuple[int, ...]) -> str:
    """Why a target does not compute the converted weight correctly.

    An operator without a kernel for blocks is rewritten to one that has them, so that only the limits of all apply.
    """
    encoding = replace(W4_EXPANDED, block_size=params.encoding.block_size)
    channels = shape[input_axis(consumer, len(shape))]
    if reason := table.why_no_block_size(encoding):
        return f"its blocks are of {encoding.block_size}: {reason}"
    if reason := table.why_not_over(encoding, channels):
        return reason
    support = table.ops.get(consumer.op_type)
    rows = [] if support is None else [s for s in support.signatures if W4_EXPANDED in (i.encoding for i in s.inputs)]
    reasons = ["" if row.when is None else row.when(consumer) for row in rows]
    return "" if "" in reasons else next(iter(reasons), "")


def _activation_dtype(producer: ir.Node | None) -> DType | None:
    return qparams_of(producer).dtype if producer is not None and is_dequantize(producer) else None


def _convert(graph: ir.Graph, node: ir.Node, integers: Array, params: QParams) -> str:
    """Round a weight on the grid of integer scales, and write it; return what was done, with its error."""
    exact = ""
    if params.dtype is DType.U4:
        integers, params = _as_signed(integers, params)
        exact = "from uint4 with zero point 8 to int4, exactly; "
    real = dequantize(integers, params)
    expanded = as_expanded(_without_zero_blocks(integers, params))
    rounded = quantize(real, expanded)
    figures = [sqnr_db(real, dequantize(values, expanded)) for values in (rounded, integers)]
    _write(graph, node, rounded, expanded)
    return (
        f"{exact}integer scales for its blocks of {params.encoding.block_size} along axis {params.axis}: "
        f"{figures[0]:.1f} dB against the weight as given, with only the scales changed {figures[1]:.1f} dB"
    )


def _as_signed(integers: Array, params: QParams) -> tuple[Array, QParams]:
    """uint4 with zero point 8 as int4 with zero point 0: the same values."""
    signed = (integers.astype(np.int8) - 8).astype(DType.S4.numpy)
    encoding = replace(params.encoding, dtype=DType.S4)
    return signed, QParams(encoding, params.scale, np.zeros_like(params.zero_point), params.axis)


def _without_zero_blocks(integers: Array, params: QParams) -> QParams:
    """The qparams with a small scale where a block has only zeros, whose scale another tool may set to anything."""
    axis, size = params.axis or 0, params.encoding.block_size
    blocks = np.add.reduceat(np.abs(integers.astype(np.int32)), np.arange(0, integers.shape[axis], size), axis=axis)
    smallest = np.where(blocks > 0, params.scale, params.scale.max()).min(axis=axis, keepdims=True)
    return QParams(params.encoding, np.where(blocks > 0, params.scale, smallest), params.zero_point, params.axis)


def _write(graph: ir.Graph, node: ir.Node, integers: Array, params: QParams) -> None:
    weight, levels = node.inputs[0], two_levels(params)
    if weight is None or levels is None:
        raise ValueError(f"{node.name!r} has no integer scales per output channel")
    int_scale, channel, axis = levels
    inputs = [
        add_initializer(graph, array, name=f"{weight.name}/{name}", source=weight)
        for name, array in (("int_scale", int_scale), ("channel_scale", channel))
    ]
    shape, real = int_scale.shape, ir.DataType.FLOAT
    attributes = {"axis": axis}
    scale = insert(
        node, "DequantizeLinear", inputs, attributes=attributes, source=weight, replaces=[], shape=shape, dtype=real
    )
    node.replace_input_with(0, add_initializer(graph, integers, name=f"{weight.name}/lpbq", source=weight))
    node.replace_input_with(1, scale)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        node.replace_input_with(2, None)
