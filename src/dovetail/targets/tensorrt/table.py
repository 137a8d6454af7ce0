"""The op table of ``tensorrt``: MatMul, Gemm and Conv run in 8 bit with Q/DQ pairs on their inputs, all else in float.

The two MatMuls and the Softmax of an attention block are one kernel if the builder has one for the 8-bit type and size.
If it has none, they stay in float16, for which it has one: that kernel is faster than two 8-bit MatMuls around a float
Softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import onnx_ir as ir

from dovetail.encoding import DType, Encoding, Granularity
from dovetail.model.attention import Attention, match_attention
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import attribute, is_op, shape_of, why_weight_not_matrix
from dovetail.numerics.grid import FLOAT8_HIGHEST
from dovetail.op_support import (
    F16,
    F32,
    FixedQParams,
    OpSupport,
    Precision,
    Signature,
    Slot,
    computing_in,
    const,
    signature,
)
from dovetail.passes.as_float16 import SMALLEST_NORMAL
from dovetail.targets.tensorrt.chips import Gpu

_KNOWN = "tensorrt-rtx 1.7.1.116, layer lists of engines built for sm75, sm80, sm86, sm89, sm120 and sm121"
F8 = Encoding(DType.F8E4M3)
WF8 = Encoding(DType.F8E4M3, granularity=Granularity.AXIS)
S8 = Encoding(DType.S8, symmetric=True)
W8 = Encoding(DType.S8, symmetric=True, granularity=Granularity.AXIS)

# The output of a Softmax is in [0, 1]: the largest quantized value represents 1.
SOFTMAX_SCALE_FP8 = 1 / FLOAT8_HIGHEST
SOFTMAX_SCALE_INT8 = 1 / 127
# Sizes that have a fused attention kernel (engines built for sm89 with head sizes 8 to 256 and 1 to 2048 keys; for the
# other GPUs with three sizes each).
FP8_LEAST_KEYS = 32
INT8_MOST_KEYS = 512
INT8_HEAD_SIZES = (16, 32, 64)
# Sizes that are fused in float16 (engines built for sm89 with head sizes 8 to 512 and 1 to 4096 keys). Of rank 3, and
# of one head with a mask, only two head sizes are known to be; one head of one sample is never fused. Values of another
# size than the head size are not fused either (engines built for sm80, sm89 and sm120 with both from 16 to 300), nor is
# a block whose scores or Softmax output are read by something else, or written as an output.
FLOAT16_HEAD_SIZES = range(9, 257)
FLOAT16_ONE_HEAD_SIZES = (32, 64)
FLOAT16_LEAST_KEYS = 2
# Head sizes for which masked attention of one head and several samples is fused in float16 only; other sizes are fused
# in neither type, or in both (engines built for sm80, sm89 and sm120 with head sizes 8 to 256).
MASKED_ONE_HEAD_FLOAT16 = {DType.F8E4M3: FLOAT16_ONE_HEAD_SIZES, DType.S8: (32,)}
# The builder silently runs convolutions with larger kernels in float16 (engines built for sm89: 4 x 8 and 5 x 6 run in
# FP8, 3 x 11 does not).
FP8_LARGEST_CONV_KERNEL = 32
# Of one sample, in one group, it computes convolutions with this many input channels or fewer element by element if
# they are over one axis, whose length they keep with an odd kernel: [1, C, L], [1, C, L, 1], and [1, C, 1, 1] in small
# squeeze-and-excite blocks (engines built for sm80, sm86, sm89, sm120 and sm121 with 1 to 64 channels, in both types;
# all others, with two samples, groups, strides, dilations, depthwise, over [1, C, 1, L] or in 3-D, run in 8 bit).
MOST_ELEMENTWISE_CHANNELS = 4
# How many nodes may be between a MatMul and its Softmax: reshapes, casts, scales and masks.
_MOST_NODES_BETWEEN = 8

FP8 = Precision("fp8", F8, WF8)
W8A8 = Precision("w8a8", S8, W8)


def table(gpu: Gpu, in_float: Encoding) -> Mapping[str, OpSupport]:
    """MatMul, Gemm and Conv read 8 bit on both inputs and write float: biases and residuals are added in float."""
    ops = _ops(gpu)
    if in_float == F16:
        ops |= {op: _with_float16_scales(ops[op]) for op in ("Conv", "Gemm", "MatMul")}
    return computing_in(in_float, ops)


def _with_float16_scales(support: OpSupport) -> OpSupport:
    """Scales have the type of the float tensors; the builder rejects a MatMul with scales of two types."""
    least = dict.fromkeys((DType.F8E4M3, DType.S8), SMALLEST_NORMAL)
    return replace(support, least_scale=least, least_weight_scale=lambda *scales: SMALLEST_NORMAL)


def _ops(gpu: Gpu) -> dict[str, OpSupport]:
    ops = {op: OpSupport((signature(F32, out=F32),), shares=(0,), known_from=_KNOWN) for op in DATA_MOVEMENT_OPS}
    encodings = ((F8, WF8), (S8, W8)) if gpu.has_fp8 else ((S8, W8),)
    linear = tuple(signature(a, const(w), F32, out=F32) for a, w in encodings)
    plain = signature(F32, F32, F32, out=F32)
    ops["Gemm"] = OpSupport((*linear, plain), known_from=_KNOWN)
    conv = tuple(replace(row, when=_has_conv_kernel(row.inputs[0].encoding.dtype)) for row in linear)
    ops["Conv"] = OpSupport((*(conv if gpu.has_int8_conv else ()), plain), known_from=_KNOWN)
    by_weight = tuple(Signature((Slot(a), const(w)), F32, when=why_weight_not_matrix) for a, w in encodings)
    by_activation = tuple(Signature((Slot(a), Slot(a)), F32, when=_fuses(a.dtype)) for a, _ in encodings)
    ops["MatMul"] = OpSupport((*by_weight, *by_activation, signature(F32, F32, out=F32)), known_from=_KNOWN)
    fixed = (FixedQParams(DType.F8E4M3, SOFTMAX_SCALE_FP8, 0), FixedQParams(DType.S8, SOFTMAX_SCALE_INT8, 0))
    ops["Softmax"] = OpSupport((signature(F32, out=F32),), fixed=fixed, known_from=_KNOWN)
    return ops


def no_kernel(attention: Attention, dtype: DType) -> str:
    """Why the builder has no fused kernel of this type for an attention block; empty if it has one."""
    key = shape_of(attention.key)
    keys, size = (key[-1] if key else None), attention.head_dim
    if dtype is DType.F8E4M3 and keys is not None and keys < FP8_LEAST_KEYS:
        return f"FP8 attention is fused only with {FP8_LEAST_KEYS} keys or more, this one has {keys}"
    if dtype is DType.S8 and keys is not None and keys > INT8_MOST_KEYS:
        return f"INT8 attention is fused only with {INT8_MOST_KEYS} keys or fewer, this one has {keys}"
    if dtype is DType.S8 and size is not None and size not in INT8_HEAD_SIZES:
        sizes = ", ".join(map(str, INT8_HEAD_SIZES))
        return f"INT8 attention is fused only with head sizes {sizes}, this one has {size}"
    if size in MASKED_ONE_HEAD_FLOAT16.get(dtype, ()) and _is_masked_with_one_head(attention):
        return f"attention with head size {size}, one head and a mask is fused only in float16"
    if dtype is DType.S8 and not _feeds_matrix_ops(attention.mix.outputs[0]):
        return "INT8 attention is fused only if all consumers of its output are INT8 MatMul, Gemm or Conv"
    return ""


def fuses_in_float16(attention: Attention) -> bool:
    """Whether the builder is known to have a fused float16 kernel for an attention block."""
    query, key, value = (shape_of(operand) for operand in (attention.query, attention.key, attention.value))
    if query is None or key is None or value is None or _is_read_elsewhere(attention):
        return False
    if math.prod(query[:-2]) == 1 or key[-1] < FLOAT16_LEAST_KEYS or not _is_shaped_alike(query, key, value):
        return False
    one_head = len(query) < 4 or _is_masked_with_one_head(attention)
    return query[-1] in (FLOAT16_ONE_HEAD_SIZES if one_head else FLOAT16_HEAD_SIZES)


def _is_shaped_alike(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]) -> bool:
    """Whether values have the size of a query, and as many heads as keys; both may have one head for all queries."""
    return value[-1] == query[-1] and value[-3:-2] == key[-3:-2]


def _is_read_elsewhere(attention: Attention) -> bool:
    """Whether the scores or the output of the Softmax, which a fused kernel does not write, are also read by others."""
    test = (
        None if attention.guard is None or attention.guard.inputs[0] is None else attention.guard.inputs[0].producer()
    )
    inside = {*attention.path, attention.mix, test}
    between = [node.outputs[0] for node in (attention.scores, *attention.path)]
    return any(value.is_graph_output() or {user for user, _ in value.uses()} - inside for value in between)


def _is_masked_with_one_head(attention: Attention) -> bool:
    """Whether several samples with one head each are masked, by more than one number."""
    query = shape_of(attention.query)
    masks = [shape_of(mask.value) for mask in attention.masks]
    return attention.heads == 1 and query is not None and query[0] > 1 and any(math.prod(m or (2,)) > 1 for m in masks)


def _feeds_matrix_ops(value: ir.Value) -> bool:
    """Whether all consumers of a value, also after data-movement operators, are MatMul, Gemm or Conv."""
    users = [user for user, _ in value.uses()]
    return (
        bool(users)
        and not value.is_graph_output()
        and all(
            is_op(user, "Conv", "Gemm", "MatMul")
            or (is_op(user, *DATA_MOVEMENT_OPS) and all(_feeds_matrix_ops(output) for output in user.outputs))
            for user in users
        )
    )


def _has_conv_kernel(dtype: DType) -> Callable[[ir.Node], str]:
    def when(node: ir.Node) -> str:
        size = math.prod((shape_of(node.inputs[1]) or ())[2:])
        if dtype is DType.F8E4M3 and size > FP8_LARGEST_CONV_KERNEL:
            return (
                f"FP8 convolution supports kernels of at most {FP8_LARGEST_CONV_KERNEL} elements, this one has {size}"
            )
        return _why_element_by_element(node)

    return when


def _why_element_by_element(node: ir.Node) -> str:
    """Why the builder computes a convolution without a matrix kernel; empty if it has one."""
    data, weight, result = (shape_of(value) for value in (node.inputs[0], node.inputs[1], node.outputs[0]))
    if data is None or weight is None or result is None or data[0] != 1 or data[1] > MOST_ELEMENTWISE_CHANNELS:
        return ""
    over_one_axis = len(data) <= 4 and math.prod((*data[3:], *weight[3:])) == 1
    same_length = data[2:] == result[2:] and weight[2] % 2 == 1
    plain = {attribute(node, "group", 1), *attribute(node, "strides", ()), *attribute(node, "dilations", ())} <= {1}
    if not (over_one_axis and same_length and plain):
        return ""
    return f"a convolution of {data[1]} channels over one axis of length {data[2]} is computed element by element"


def _fuses(dtype: DType) -> Callable[[ir.Node], str]:
    def when(node: ir.Node) -> str:
        attention = attention_of(node)
        return "" if attention is None else no_kernel(attention, dtype)

    return when


def attention_of(node: ir.Node) -> Attention | None:
    """The attention block that a MatMul belongs to, either before its Softmax or after it."""
    after = _softmaxes_after(node.outputs[0], _MOST_NODES_BETWEEN)
    before = _softmaxes_before(node.inputs[0], _MOST_NODES_BETWEEN)
    for softmax in (*after, *before):
        attention = match_attention(softmax)
        if attention is not None and node in (attention.scores, attention.mix):
            return attention
    return None


def _softmaxes_after(value: ir.Value, distance: int) -> list[ir.Node]:
    softmaxes: list[ir.Node] = []
    for user, _ in value.uses() if distance else ():
        if is_op(user, "Softmax"):
            softmaxes.append(user)
        elif not is_op(user, "MatMul") and user.outputs:
            softmaxes += _softmaxes_after(user.outputs[0], distance - 1)
    return softmaxes


def _softmaxes_before(value: ir.Value | None, distance: int) -> list[ir.Node]:
    node = None if value is None else value.producer()
    if node is None or not distance:
        return []
    if is_op(node, "Softmax"):
        return [node]
    # After a Softmax the data is input 0, or the last input of the Where that replaces NaN.
    return _softmaxes_before(node.inputs[2 if is_op(node, "Where") else 0], distance - 1) if node.inputs else []
